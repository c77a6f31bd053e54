"""Parts of the kernels' benchmark in processes of their own: a crash of the device, or the end of the time, costs one
figure and names it.

A process announces a figure in a file before it is measured, and writes it down as soon as it is there.
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
    LIBRARIES,
    NO_TIME,
    FigureJournal,
    KernelOptions,
    run_part,
)
from bench.timing import DeviceCeilings  # noqa: E402

_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, for the figure that was begun in time
_TAIL = 600  # characters of a dead process's last words
# Seconds after which a figure of a part's own process hangs: models are made first, and libraries compile and tune.
_HANGS = {"heads": 30.0, "ops": 30.0, "cycle": 90.0, "drafting": 90.0, LIBRARIES: 90.0}

Command = Callable[[str, Path, Path], Sequence[str]]


def this_python(part: str, journal: Path, options: Path) -> Sequence[str]:
    """The command of a part's process."""
    return [sys.executable, __file__, part, str(journal), str(options)]


def run_isolated(
    part: str, options: KernelOptions, folder: Path, command: Command = this_python
) -> FigureJournal:
    """Measure one part in processes of its own; one that dies is followed by another for the rest.

    Args:
        part: row of ``PARTS``.
        options: ``budget`` is for all its processes together.
        folder: gets the journal and what the processes said.
        command: of a process; it adds to the journal and skips what stands there.

    Returns:
        its figures, and those that stay open with the reason.
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
        if at is None:  # it will not get further the next time
            break
    JournalFile(journal).leave(f"{part}: the rest", NO_TIME)
    return read_journal(journal)[0]


def _one(command: Sequence[str], log: Path, seconds: float) -> str | None:
    """Run one process; why it ended before it was done, or None."""
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
    """This process's, with the package where it was found."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class JournalFile(FigureJournal):
    """A journal whose figures are on disk as they come.

    Args:
        path: JSON lines are added to it.
        skip: names that are not to be measured again.
        hangs: seconds after which a figure ends the process, which is then the journal's alone; None: never.
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
    """What a process wrote, and the figure that it was at when it ended without finishing it."""
    found, at = FigureJournal(), None
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    for text in lines:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # cut off in the middle
            continue
        name = line["name"]
        at = name if "begun" in line else None
        if "row" in line:
            found.rows[name] = line["row"]
        elif "open" in line:
            found.open[name] = line["open"]
    return found, at


def read_options(values: Mapping[str, Any]) -> KernelOptions:
    """What ``KernelOptions.to_dict`` gave."""
    lists = {name: tuple(values[name]) for name in ("shapes", "rows", "ops")}
    ceilings = values["ceilings"] and DeviceCeilings(**values["ceilings"])
    return KernelOptions(**{**values, **lists, "ceilings": ceilings})


def main(arguments: Sequence[str]) -> None:
    """Measure a part in this process: ``PART JOURNAL OPTIONS``."""
    part, journal, settings = arguments
    values = json.loads(Path(settings).read_text())
    passed = time.time() - values.pop("began")  # importing torch took its time
    options = read_options(values)
    before, _ = read_journal(Path(journal))
    known = frozenset({*before.rows, *before.open})
    end = time.monotonic() + options.budget - passed
    run_part(part, options, JournalFile(Path(journal), known, end, _HANGS[part]))


if __name__ == "__main__":
    main(sys.argv[1:])
