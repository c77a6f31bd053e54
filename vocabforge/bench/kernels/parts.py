"""The parts of ``vocabforge bench kernels``, and the journal that keeps every finished figure when one of them dies.

A part announces a figure before it is measured and writes it down as soon as it is there, so that a crash of the
device, or the end of the time, costs one figure and names it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.registry import resolve
from .cases.types import ROWS
from .timing import DeviceCeilings, Protocol

_MOST_STARTS = 8
_GRACE = 15.0  # seconds beyond the budget, for the figure that was begun in time
NO_TIME = "no time left"
_TAIL = 600  # characters of a dead process's last words

Command = Callable[[str, Path, Path], Sequence[str]]


def this_python(part: str, journal: Path, options: Path) -> Sequence[str]:
    """The command of a part's process."""
    return [sys.executable, "-m", __name__, part, str(journal), str(options)]


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
        FigureJournal(journal).leave(name, why)
        if at is None:  # it will not get further the next time
            break
    FigureJournal(journal).leave(f"{part}: the rest", NO_TIME)
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
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def main(arguments: Sequence[str]) -> None:
    """Measure a part in this process: ``PART JOURNAL OPTIONS``."""
    part, journal, settings = arguments
    values = json.loads(Path(settings).read_text())
    passed = time.time() - values.pop("began")  # importing torch took its time
    options = KernelOptions.from_dict(values)
    before, _ = read_journal(Path(journal))
    known = frozenset({*before.rows, *before.open})
    end = time.monotonic() + options.budget - passed
    run_part(part, options, FigureJournal(Path(journal), known, end, hangs=_HANGS[part]))


# Name of a figure and what measures it, or why it cannot be measured.
Figure = tuple[str, "Callable[[], dict[str, Any]] | str"]

LIBRARIES = "libraries"
# name -> "module:attr" of a function from options to the part's figures; run in this order, goals first.
PARTS: dict[str, str] = {
    "heads": "vocabforge.bench.kernels.ops:head_figures",
    "cycle": "vocabforge.bench.kernels.cycle:cycle_figures",
    "ops": "vocabforge.bench.kernels.ops:op_figures",
    "drafting": "vocabforge.bench.kernels.cycle:drafting_figures",
    LIBRARIES: "vocabforge.bench.kernels.ops:library_figures",
}
# Seconds after which a figure of a part's own process hangs: models are made first, and libraries compile and tune.
_HANGS = {"heads": 30.0, "ops": 30.0, "cycle": 90.0, "drafting": 90.0, LIBRARIES: 90.0}


@dataclass(frozen=True)
class KernelOptions:
    """What is measured.

    Attributes:
        device: ``cuda`` or ``cpu``.
        shapes: names of ``cases.types.SHAPES``.
        rows: N.
        ops: of ``OP_BENCHES``; empty: all.
        backend: of the ops.
        measure: seconds of one measurement.
        budget: seconds of one part; what does not fit stays open.
        ceilings: of the device, once they are known.
        only: a part of the figures' names; empty: all.
    """

    device: str = "cuda"
    shapes: tuple[str, ...] = ("llama3-8b", "qwen3-8b")
    rows: tuple[int, ...] = ROWS
    ops: tuple[str, ...] = ()
    backend: str = "native"
    measure: float = 0.03
    budget: float = 120.0
    ceilings: DeviceCeilings | None = None
    only: str = ""

    def protocol(self) -> Protocol:
        """How these options are timed: on a CPU with few repeats."""
        import torch

        if self.device == "cpu":
            return Protocol(torch.device("cpu"), self.measure, least=2, most=10, most_copies=2)
        return Protocol(torch.device(self.device), self.measure)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, read back by :meth:`from_dict`."""
        return {**vars(self), "ceilings": None if self.ceilings is None else vars(self.ceilings)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> KernelOptions:
        """The options that :meth:`to_dict` gave."""
        ceilings = values["ceilings"]
        lists = {name: tuple(values[name]) for name in ("shapes", "rows", "ops")}
        return cls(
            **{**values, **lists, "ceilings": None if ceilings is None else DeviceCeilings(**ceilings)}
        )


@dataclass
class FigureJournal:
    """Figures by name, on disk as they come.

    Args:
        path: JSON lines are added to it; None keeps them in memory only.
        skip: names that are not to be measured again.
        deadline: of ``time.monotonic``; what would begin later stays open.
        hangs: seconds after which a figure ends the process, which is then the journal's alone; None: never.
    """

    path: Path | None = None
    skip: frozenset[str] = frozenset()
    deadline: float = float("inf")
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    hangs: float | None = None

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Measure one figure, unless it is there or the time is over.

        Raises:
            RuntimeError: the device can no longer be used.
        """
        if name in self.skip:
            return
        if time.monotonic() > self.deadline:
            self.leave(name, NO_TIME)
            return
        self._write({"name": name, "begun": True})
        if self.hangs is not None:
            faulthandler.dump_traceback_later(self.hangs, exit=True)
        try:
            row = make()
        except Exception as error:
            if device_lost(error):
                raise
            self.leave(name, f"{type(error).__name__}: {error}")
            return
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.rows[name] = row
        self._write({"name": name, "row": row})

    def leave(self, name: str, why: str) -> None:
        """A figure that stays open."""
        if name not in self.skip:
            self.open[name] = why
            self._write({"name": name, "open": why})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self.path is not None:
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


def device_lost(error: BaseException) -> bool:
    """A CUDA error other than too little memory stays with its process."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def run_part(part: str, options: KernelOptions, journal: FigureJournal) -> None:
    """Measure one part in this process.

    Raises:
        UsageError: no such part.
        RuntimeError: the device can no longer be used.
    """
    for name, make in resolve(PARTS, part, "part of the kernels' benchmark")(options):
        if options.only not in name:
            continue
        if isinstance(make, str):
            journal.leave(name, make)
        else:
            journal.measure(name, make)


if __name__ == "__main__":
    main(sys.argv[1:])
