"""Run each part of the kernels' benchmark in a separate process.

A process writes each figure's name to a journal before measuring it and the result immediately after. A
device crash or a timeout therefore loses only one figure, whose name is known.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]  # nothing need be installed

from bench.parts import (  # noqa: E402
    NO_TIME,
    FigureJournal,
    KernelOptions,
    run_part,
)
from bench.timing import DeviceCeilings  # noqa: E402

_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, to finish a figure started in time
_TAIL = 600  # characters kept from a failed process's output
# Timeout per figure in seconds, by part; includes building models.
_HANGS = {"heads": 30.0, "ops": 30.0, "cycle": 90.0}

Command = Callable[[str, Path, Path], Sequence[str]]


def this_python(part: str, journal: Path, options: Path) -> Sequence[str]:
    """Return the command that runs a part."""
    return [sys.executable, __file__, part, str(journal), str(options)]


def run_isolated(
    part: str, options: KernelOptions, folder: Path, command: Command = this_python
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
    journal.touch()
    end = time.monotonic() + options.budget
    for _ in range(_MOST_STARTS):
        left = end - time.monotonic()
        if left <= 0:
            break
        settings.write_text(json.dumps({**options.to_dict(), "budget": left, "began": time.time()}))
        why = _one(command(part, journal, settings), log, left + _GRACE)
        found, at = read_journal(journal)
        if why is None:
            return found
        name = at or f"{part}: start"
        JournalFile(journal).leave(name, why)
        if at is None:  # a restart would fail in the same way
            break
    JournalFile(journal).leave(f"{part}: the rest", NO_TIME)
    return read_journal(journal)[0]


def _one(command: Sequence[str], log: Path, seconds: float) -> str | None:
    """Run a process and return why it failed, or None."""
    with log.open("a", encoding="utf-8") as output:
        begun = output.tell()
        try:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, env=_environment()
            )
        except subprocess.TimeoutExpired:
            return f"not done after {seconds:.0f} s"
    if done.returncode == 0:
        return None
    said = log.read_bytes()[begun:].decode("utf-8", "replace").strip()
    return f"the process ended with {done.returncode}: {said[-_TAIL:]}"


def _environment() -> dict[str, str]:
    """Return this process's environment, with the package's location on the path."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class JournalFile(FigureJournal):
    """A journal that writes each figure to disk immediately.

    Args:
        path: JSON Lines file to append to.
        skip: names of figures to skip.
        hangs: timeout per figure in seconds, which kills the whole process; None disables it.
    """

    def __init__(
        self,
        path: Path,
        skip: frozenset[str] = frozenset(),
        deadline: float = float("inf"),
        hangs: float | None = None,
    ) -> None:
        super().__init__(deadline)
        self.path, self.skip, self.hangs = path, skip, hangs

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        if name in self.skip:
            return
        self._write({"name": name, "begun": True})
        if self.hangs is not None:
            faulthandler.dump_traceback_later(self.hangs, exit=True)
        try:
            super().measure(name, make)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if name in self.rows:
            self._write({"name": name, "row": self.rows[name]})

    def leave(self, name: str, why: str) -> None:
        if name not in self.skip:
            super().leave(name, why)
            self._write({"name": name, "open": why})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_journal(path: Path) -> tuple[FigureJournal, str | None]:
    """Return the journal of a process and the figure that was unfinished when it ended, or None."""
    found, at = FigureJournal(), None
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    for text in lines:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # truncated line
            continue
        name = line["name"]
        at = name if "begun" in line else None
        if "row" in line:
            found.rows[name] = line["row"]
        elif "open" in line:
            found.open[name] = line["open"]
    return found, at


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
    before, _ = read_journal(Path(journal))
    known = frozenset({*before.rows, *before.open})
    end = time.monotonic() + options.budget - passed
    run_part(part, options, JournalFile(Path(journal), known, end, _HANGS[part]))


if __name__ == "__main__":
    main(sys.argv[1:])
