"""Parts of the kernels' benchmark, their settings, and the journal of their figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vocabforge.core.registry import resolve

from .cases.types import ROWS
from .timing import DeviceCeilings, Protocol

NO_TIME = "no time left"
# Name of a figure, and the function that measures it or the reason why it cannot be measured.
Figure = tuple[str, "Callable[[], dict[str, Any]] | str"]

# name -> "module:attr" of a function from options to the part's figures; run in this order, goals first.
PARTS: dict[str, str] = {
    "heads": "bench.ops:head_figures",
    "cycle": "bench.cycle:cycle_figures",
    "ops": "bench.ops:op_figures",
}


@dataclass(frozen=True)
class KernelOptions:
    """Settings of the benchmark.

    Attributes:
        device: ``cuda`` or ``cpu``.
        shapes: names of ``cases.types.SHAPES``.
        rows: N.
        ops: keys of ``OP_BENCHES``; empty: all.
        backend: backend of the ops.
        measure: seconds per measurement.
        budget: seconds per part; figures that do not fit stay open.
        ceilings: measured limits of the device, if available.
        only: substring of figure names; empty: all.
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
        """Return the timing protocol, which has few repeats on a CPU."""
        import torch

        if self.device == "cpu":
            return Protocol(torch.device("cpu"), self.measure, least=2, most=10, most_copies=2)
        return Protocol(torch.device(self.device), self.measure)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**vars(self), "ceilings": None if self.ceilings is None else vars(self.ceilings)}


@dataclass
class FigureJournal:
    """Collection of figures by name.

    Args:
        deadline: in ``time.monotonic`` time; figures that would start later stay open.
        rows, open: finished figures, and the reasons for unfinished figures.
    """

    deadline: float = float("inf")
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Measure a figure if time is left.

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
        """Record that a figure stays open."""
        self.open[name] = why


def device_lost(error: BaseException) -> bool:
    """Return whether a CUDA error makes the process unusable; running out of memory does not."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def run_part(part: str, options: KernelOptions, journal: FigureJournal) -> None:
    """Measure a part in this process.

    Raises:
        UsageError: the part does not exist.
        RuntimeError: the device can no longer be used.
    """
    for name, make in resolve(PARTS, part, "part of the kernels' benchmark")(options):
        if options.only not in name:
            continue
        if isinstance(make, str):
            journal.leave(name, make)
        else:
            journal.measure(name, make)
