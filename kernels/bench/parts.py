"""The parts of ``kernels/measure.py``, their settings, and the journal of their figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vocabforge.core.registry import resolve

from .cases.types import ROWS
from .timing import DeviceCeilings, Protocol

NO_TIME = "no time left"
# Name of a figure and what measures it, or why it cannot be measured.
Figure = tuple[str, "Callable[[], dict[str, Any]] | str"]

LIBRARIES = "libraries"
# name -> "module:attr" of a function from options to the part's figures; run in this order, goals first.
PARTS: dict[str, str] = {
    "heads": "bench.ops:head_figures",
    "cycle": "bench.cycle:cycle_figures",
    "ops": "bench.ops:op_figures",
    "drafting": "bench.cycle:drafting_figures",
    LIBRARIES: "bench.ops:library_figures",
}


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
        """Plain JSON values."""
        return {**vars(self), "ceilings": None if self.ceilings is None else vars(self.ceilings)}


@dataclass
class FigureJournal:
    """Figures by name, as they come.

    Args:
        deadline: of ``time.monotonic``; what would begin later stays open.
        rows, open: finished figures, and why others are not.
    """

    deadline: float = float("inf")
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Measure one figure, unless the time is over.

        Raises:
            RuntimeError: the device can no longer be used.
        """
        if time.monotonic() > self.deadline:
            self.leave(name, NO_TIME)
            return
        try:
            self.rows[name] = make()
        except Exception as error:
            if device_lost(error):
                raise
            self.leave(name, f"{type(error).__name__}: {error}")

    def leave(self, name: str, why: str) -> None:
        """A figure that stays open."""
        self.open[name] = why


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
