"""Run each part of the kernels' benchmark in a separate process: a crash or a timeout loses only one figure."""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu_process
from bench.parts import NO_TIME, FigureJournal, KernelOptions, run_part
from bench.timing import DeviceCeilings
from gpu_process import append

_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, to finish a figure started in time
_TAIL = 600  # characters kept from a failed process's output
# Timeout per figure in seconds, by part; includes building models.
_HANGS = {"heads": 30.0, "ops": 30.0, "cycle": 90.0}


def this_python(part: str, journal: Path, options: Path) -> Sequence[str]:
    """Return the command that runs a part."""
    return [sys.executable, __file__, part, str(journal), str(options)]


def run_isolated(
    part: str,
    options: KernelOptions,
    folder: Path,
    command: Callable[[str, Path, Path], Sequence[str]] = this_python,
) -> FigureJournal:
    """Measure a part in a separate process; if it dies, start another for the remaining figures.

    Args:
        part: key of ``PARTS``.
        options: ``budget`` covers all processes together.
        folder: receives the journal and the processes' output.
        command: returns a process's command; the process appends to the journal and skips recorded figures.

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
        code, said = gpu_process.run(command(part, journal, settings), left + _GRACE, log)
        found, at = read_figures(journal)
        if code == 0:
            return found
        why = f"the process ended with {code}: {said[-_TAIL:]}"
        append(journal, name=at or f"{part}: start", open=why)
        if at is None:  # a restart would fail in the same way
            break
    append(journal, name=f"{part}: the rest", open=NO_TIME)
    return read_figures(journal)[0]


class JournalFile(FigureJournal):
    """A journal that writes each figure to disk immediately.

    Args:
        path: JSON Lines file to append to; figures that it has are skipped.
        hangs: timeout per figure in seconds, which kills the whole process; None disables it.
    """

    def __init__(self, path: Path, deadline: float = float("inf"), hangs: float | None = None) -> None:
        super().__init__(deadline)
        self.path, self.hangs, self.known = path, hangs, frozenset(gpu_process.read_journal(path)[0])

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        if name in self.known:
            return
        append(self.path, name=name, begun=True)
        if self.hangs is not None:
            faulthandler.dump_traceback_later(self.hangs, exit=True)
        try:
            super().measure(name, make)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if name in self.rows:
            append(self.path, name=name, row=self.rows[name])
        append(self.path, name=name, ended=True)

    def leave(self, name: str, why: str) -> None:
        if name not in self.known:
            super().leave(name, why)
            append(self.path, name=name, open=why)


def read_figures(path: Path) -> tuple[FigureJournal, str | None]:
    """Return the figures of a process's journal and the one that was unfinished when it ended, or None."""
    results, at = gpu_process.read_journal(path)
    rows = {name: entry["row"] for name, entry in results.items() if "row" in entry}
    left = {name: entry["open"] for name, entry in results.items() if "open" in entry}
    return FigureJournal(rows=rows, open=left), at


def read_options(values: Mapping[str, Any]) -> KernelOptions:
    """Load the output of ``KernelOptions.to_dict``."""
    lists = {name: tuple(values[name]) for name in ("shapes", "rows", "ops")}
    ceilings = values["ceilings"] and DeviceCeilings(**values["ceilings"])
    return KernelOptions(**{**values, **lists, "ceilings": ceilings})


def main(arguments: Sequence[str]) -> None:
    """Measure a part in this process: ``PART JOURNAL OPTIONS``."""
    part, journal, settings = arguments
    values = json.loads(Path(settings).read_text())
    passed = time.time() - values.pop("began")  # includes importing torch
    options = read_options(values)
    end = time.monotonic() + options.budget - passed
    run_part(part, options, JournalFile(Path(journal), end, _HANGS[part]))


if __name__ == "__main__":
    main(sys.argv[1:])
