"""Processes on a machine with a GPU: what hangs, aborts or loses the device costs only what was running.

A process appends to a journal what it begins and what came of it; another process goes on behind that.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KILLED = 124  # exit code of a process whose time ran out
_TAIL = 4000  # characters kept of a process's output


def append(path: Path, **entry: Any) -> None:
    """Append an entry as a JSON line: ``name`` and ``begun``, ``ended`` or a result."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def read_journal(path: Path) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Return results by name, and the name that was begun and not ended, or None; a failure stays one."""
    results: dict[str, dict[str, Any]] = {}
    begun = None
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # truncated by a kill
            continue
        name = entry["name"]
        if "begun" in entry or "ended" in entry:
            begun = name if "begun" in entry else None
        elif results.get(name, {}).get("outcome") != "failed":
            results[name] = entry
    return results, begun


def run(
    arguments: Sequence[str],
    seconds: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
    watch: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run a command in the repository; after ``seconds`` it and its children are killed.

    Args:
        log: receives its output.
        environment: variables beside those of this process.
        watch: called about ten times a second.

    Returns:
        Exit code (:data:`KILLED` on timeout) and the end of its output.
    """
    end = time.monotonic() + seconds
    paths = [str(ROOT / "kernels"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})}
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
                watch()
            code = process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    said = log.read_bytes()[start:].decode("utf-8", "replace").strip()[-_TAIL:]
    return (KILLED, f"{said}\nnot done after {seconds:.0f} s") if code is None else (code, said)
