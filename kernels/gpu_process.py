"""Processes that may hang, abort or lose the GPU: each writes what it begins and what came of it to a journal.

If a process dies, what it was doing has failed, and another one continues after that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Environment of such a process: its journal, and the time.time() after which it should begin nothing.
JOURNAL, DEADLINE = "VOCABFORGE_GPU_JOURNAL", "VOCABFORGE_GPU_DEADLINE"
KILLED, LOST = 124, 70  # exit codes: time ran out; the device is lost
NO_TIME = "no time left"
_STARTS = 8  # maximum process starts
_TAIL = 3000  # characters kept from a failure or a failed process's output
_STICKY = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert")
_NOT_STICKY = ("out of memory", "invalid argument", "invalid configuration")

Entries = dict[str, dict[str, Any]]


def note(journal: Path, name: str, **entry: Any) -> None:
    """Append a JSON line: ``begun``, ``ended``, or an ``outcome`` with its ``problem``, ``seconds`` or ``row``."""
    with journal.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, **entry}) + "\n")


def begin(journal: Path, name: str, seconds: float) -> None:
    """Record that a test or figure begins; if it takes too long, the process ends with a trace."""
    note(journal, name, begun=True)
    trace = journal.with_suffix(".trace").open("a", encoding="utf-8")
    faulthandler.dump_traceback_later(seconds, exit=True, file=trace)


def end(journal: Path, name: str) -> None:
    faulthandler.cancel_dump_traceback_later()
    note(journal, name, ended=True)


def leave_if_lost(problem: str) -> None:
    """End the process if the device can no longer be used: after an illegal address every CUDA call fails."""
    if any(text in problem for text in _STICKY) and not any(text in problem for text in _NOT_STICKY):
        os._exit(LOST)


def read_journal(path: Path) -> tuple[Entries, str | None]:
    """Return outcomes by name, and the name that was begun and not ended, or None; a failure stays one."""
    found: Entries = {}
    begun = None
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # truncated by a kill
            continue
        name = entry.pop("name")
        if "outcome" not in entry:
            begun = name if "begun" in entry else None
        elif found.get(name, {}).get("outcome") != "failed":
            found[name] = entry
    return found, begun


def run(
    command: Sequence[str], seconds: float, log: Path, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command in the repository; after ``seconds`` it and its children are killed.

    Args:
        log: receives its output.
        environment: variables in addition to those of this process.

    Returns:
        Exit code (:data:`KILLED` on timeout) and the end of its output.
    """
    paths = [str(ROOT / "kernels"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=variables, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            code = process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_bytes()[start:].decode("utf-8", "replace").strip()[-_TAIL:]
    return (KILLED, f"not done after {seconds:.0f} s\n{said}") if code is None else (code, said)


def supervise(
    command: Sequence[str],
    journal: Path,
    seconds: float,
    *,
    grace: float = 0.0,
    done: Collection[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> tuple[Entries, str | None]:
    """Run a command that writes a journal until it is through, again after each death.

    Args:
        journal: its outcomes are not asked for again.
        seconds: for all processes together, each of which is told its end.
        grace: further seconds to finish what was begun in time.
        done: exit codes of a process that did all it had to.
        environment: see :func:`run`.

    Returns:
        Outcomes by name, and why the rest did not run, or None.
    """
    trace, until = journal.with_suffix(".trace"), time.time() + seconds
    problem = NO_TIME
    for _ in range(_STARTS):
        if (left := until - time.time()) <= 0:
            break
        told = {JOURNAL: str(journal), DEADLINE: str(until), **(environment or {})}
        known = len(read_journal(journal)[0])
        code, said = run(command, left + grace, journal.with_suffix(".log"), told)
        found, at = read_journal(journal)
        if code in done and at is None:
            return found, None
        hung = trace.read_text("utf-8", "replace").strip() if trace.is_file() else ""
        trace.unlink(missing_ok=True)
        problem = hung[:_TAIL] or (said if code == KILLED else f"the process ended with {code}\n{said}")
        if code != LOST:  # otherwise the process has recorded the failure
            name = at or f"{journal.stem}: start"
            note(journal, name, outcome="failed", problem=problem)
            print(f"[gpu-check] {name}: {problem.splitlines()[0]}", file=sys.stderr, flush=True)
        if at is None and len(found) == known:  # another process would fail in the same way
            break
    return read_journal(journal)[0], problem.splitlines()[0]
