"""Isolated processes for a machine with a GPU: a hang, an abort or a lost device costs only what was running.

A process appends what it begins and what came of it to a journal; the next process continues after that. ``python
kernels/gpu_process.py PART JOURNAL OPTIONS`` measures a part of the benchmark in such a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.parts import NO_TIME, FigureJournal, KernelOptions, read_journal, run_part
from bench.timing import DeviceCeilings

ROOT = Path(__file__).resolve().parents[1]
KILLED = 124  # exit code of a process whose time ran out
_TAIL = 4000  # characters kept of a process's output
_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, to finish a figure started in time
# Timeout per figure in seconds, by part; includes building models.
_HANGS = {"heads": 30.0, "ops": 30.0, "cycle": 90.0}


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
        environment: variables in addition to those of this process.
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


def run_isolated(
    part: str, options: KernelOptions, folder: Path, script: Path = Path(__file__)
) -> FigureJournal:
    """Measure a part in a separate process; if it dies, start another for the remaining figures.

    Args:
        part: key of ``PARTS``.
        options: ``budget`` covers all processes together.
        folder: receives the journal and the processes' output.
        script: a process's program: ``PART JOURNAL OPTIONS``.

    Returns:
        Measured figures, and unmeasured figures with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    journal, settings, log = (folder / f"{part}.{end}" for end in ("jsonl", "json", "log"))
    journal.unlink(missing_ok=True)
    end = time.monotonic() + options.budget
    for _ in range(_MOST_STARTS):
        left = end - time.monotonic()
        if left <= 0:
            break
        settings.write_text(json.dumps({**options.to_dict(), "budget": left, "began": time.time()}))
        command = [sys.executable, str(script), part, str(journal), str(settings)]
        code, said = run(command, left + _GRACE, log)
        found = FigureJournal(path=journal)
        if code == 0:
            return found
        at = read_journal(journal)[1]
        found.leave(at or f"{part}: start", f"the process ended with {code}: {said[-600:]}")
        if at is None:  # a restart would fail in the same way
            break
    FigureJournal(path=journal).leave(f"{part}: the rest", NO_TIME)
    return FigureJournal(path=journal)


def main(arguments: Sequence[str]) -> None:
    """Measure a part in this process: ``PART JOURNAL OPTIONS``."""
    part, journal, settings = arguments
    values = json.loads(Path(settings).read_text())
    passed = time.time() - values.pop("began")  # includes importing torch
    values |= {name: tuple(values[name]) for name in ("shapes", "rows", "ops")}
    ceilings = values["ceilings"] and DeviceCeilings(**values["ceilings"])
    options = KernelOptions(**{**values, "ceilings": ceilings})
    end = time.monotonic() + options.budget - passed
    run_part(part, options, FigureJournal(end, Path(journal), _HANGS[part]))


if __name__ == "__main__":
    main(sys.argv[1:])
