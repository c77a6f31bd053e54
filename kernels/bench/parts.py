"""Parts of the kernels' benchmark, their settings, and the journal of their figures."""

from __future__ import annotations

import faulthandler
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
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


class FigureJournal:
    """Collection of figures by name, written to a file at once if there is one.

    Args:
        deadline: in ``time.monotonic`` time; figures that would start later stay open.
        path: JSON Lines file to append to; figures that it has are read and not measured again.
        hangs: timeout per figure in seconds, which kills the whole process.

    Attributes:
        rows, open: finished figures, and the reasons for unfinished figures.
    """

    def __init__(
        self, deadline: float = float("inf"), path: Path | None = None, hangs: float | None = None
    ) -> None:
        self.deadline, self.path, self.hangs = deadline, path, hangs
        known = read_journal(path)[0] if path else {}
        self.rows: dict[str, dict[str, Any]] = {
            name: one["row"] for name, one in known.items() if "row" in one
        }
        self.open: dict[str, str] = {name: one["open"] for name, one in known.items() if "open" in one}

    def measure(self, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Measure a figure if it is not known and time is left.

        Raises:
            RuntimeError: the device can no longer be used.
        """
        if name in self.rows or name in self.open:
            return
        if time.monotonic() > self.deadline:
            self.leave(name, NO_TIME)
            return
        self._note(name=name, begun=True)
        if self.hangs is not None:
            faulthandler.dump_traceback_later(self.hangs, exit=True)
        try:
            self.rows[name] = make()
        except Exception as error:
            if device_lost(error):
                raise
            self.leave(name, f"{type(error).__name__}: {error}")
        else:
            self._note(name=name, row=self.rows[name])
        finally:
            faulthandler.cancel_dump_traceback_later()
        self._note(name=name, ended=True)

    def leave(self, name: str, why: str) -> None:
        """Record that a figure stays open."""
        self.open[name] = why
        self._note(name=name, open=why)

    def _note(self, **entry: Any) -> None:
        if self.path is not None:
            append(self.path, **entry)


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
