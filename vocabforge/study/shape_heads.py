"""Measured times of draft heads, of a drafter's layer and of a target's layer at the shape of an 8B model.

Weights are random and in bf16. Tasks take turns in rounds, in another order each, so that whatever else the machine
does falls on all of them alike; each begins with cold caches, as in a cycle, where the target's weights pass in
between. On CUDA a call is captured in a graph behind a read of more than the cache, whose own time is taken off; on a
CPU that read is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil, floor, sqrt
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..core.console import say
from ..evaluate.bench_kernels_timing import Protocol, time_calls
from ..evaluate.doctor.environment import free_memory
from ..evaluate.environment import describe_environment
from ..tune.measure import Task, run_rounds
from ..tune.types import HeadSetting
from .shape_build import Call, ShapeHeads, ShapeLayers, shape_of
from .shape_times import HeadTime, ShapeTimes, Timed, representatives, weights_of

_CPU_CACHE = 1 << 27  # bytes, more than a core sees of any cache
_SECONDS = 0.02  # for the repeats of one measurement of a round, on CUDA
_LEAST = 1e-7  # seconds: below it a difference of two times says nothing
_ROOM = 0.8  # of free memory that may be taken
_SPARE = 4  # copies of a step's logits in fp32


@dataclass(frozen=True)
class ShapePlan:
    """What is measured.

    Attributes:
        hidden, rows: H and V.
        width: hidden rows of a draft step of a tree, and tokens asked of each.
        nodes: tokens of the target's passes.
        prefix: positions that caches hold.
        budget_s: seconds; every head and pass is measured once whatever it takes.
        rounds: most of them.
    """

    hidden: int
    rows: int
    width: int
    nodes: tuple[int, ...]
    prefix: int
    budget_s: float
    rounds: int = 40


def measure_shape(
    settings: Iterable[HeadSetting], plan: ShapePlan, device: torch.device
) -> ShapeTimes | None:
    """Measure one head of every size.

    Args:
        settings: heads at this shape (``roofline.scaled``).

    Returns:
        None where not even the LM head and a layer fit into memory, which is said.
    """
    began, cuda = time.monotonic(), device.type == "cuda"
    wanted = representatives(settings)
    kept, notes = fitting(wanted, plan, free_bytes(device), copies=cuda)
    if not kept:
        say("Times of the larger shape are left out: " + "; ".join(notes))
        return None
    with torch.inference_mode():
        meter = _Meter(plan, kept, device)
        rounds, late = run_rounds(meter.tasks, [], seconds=plan.budget_s, most=plan.rounds, seed=0)
    return meter.times(rounds, (*notes, *late), time.monotonic() - began)


def free_bytes(device: torch.device) -> float:
    """Memory that can still be taken; infinite where that is unknown."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = free_memory()
    return float("inf") if found is None else float(found)


def fitting(
    wanted: Sequence[HeadSetting], plan: ShapePlan, free: float, *, copies: bool
) -> tuple[list[HeadSetting], list[str]]:
    """The heads whose weights fit into memory beside the LM head and a layer, and what does not.

    Args:
        free: bytes.
        copies: see :func:`~vocabforge.study.shape_times.weights_of`.
    """
    shape = shape_of(plan.hidden, plan.rows)
    layer = 4 * plan.hidden**2 + 3 * plan.hidden * shape.intermediate
    drafter = layer + 6 * plan.hidden**2
    taken = 2.0 * (plan.rows * plan.hidden + layer + drafter)
    taken += _SPARE * 4 * plan.rows * max(plan.width, *plan.nodes)
    room = _ROOM * free
    if taken > room:
        return [], [f"they need {taken / 1e9:.1f} GB of memory, and {room / 1e9:.1f} GB may be taken"]
    kept, notes, known = list[HeadSetting](), list[str](), set[str]()
    for setting in wanted:
        parts = weights_of(setting, plan.rows, plan.hidden, copies=copies)
        more = sum(size for name, size in parts.items() if name not in known)
        if taken + more > room:
            notes.append(f"not measured, no memory left: {setting.label}")
            continue
        taken, known = taken + more, known | set(parts)
        kept.append(setting)
    return kept, notes


@dataclass
class _Meter:
    """Tasks of a round, and what they found.

    Attributes:
        found: seconds by what they are of and rows.
    """

    plan: ShapePlan
    settings: Sequence[HeadSetting]
    device: torch.device
    found: dict[tuple[object, int], list[float]] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        text = max((one.scored[0] - one.core for one in self.settings if one.kind == "context"), default=1)
        heads = ShapeHeads(plan.rows, plan.hidden, self.device, text=text)
        self._clock = ColdClock(self.device, min(4 * heads.weight.nbytes, _CPU_CACHE))
        shape = shape_of(plan.hidden, plan.rows)
        self._layers = shape.layers
        passes = ShapeLayers(shape, self.device, prefix=plan.prefix, most=max(plan.width, *plan.nodes))
        steps = sorted({1, plan.width})
        nodes = sorted({1, *plan.nodes})
        self._add({("drafter", rows): passes.drafter(rows) for rows in steps})
        self._add({("target", rows): passes.target(rows) for rows in nodes})
        self._add({("logits", rows): heads.logits(rows) for rows in nodes})
        self._add({("fuse", 1): passes.fuse()})
        for setting in self.settings:
            head = heads.head(setting)
            self._add({(setting, rows): heads.call(head, rows, rows) for rows in steps})

    def _add(self, calls: Mapping[tuple[object, int], Call]) -> None:
        for (what, rows), call in calls.items():
            name = what.label if isinstance(what, HeadSetting) else str(what)
            self.tasks.append((f"{name}, {rows} rows", partial(self._measure, (what, rows), call)))

    def _measure(self, key: tuple[object, int], call: Call, number: int) -> None:
        if key not in self.found:
            call()  # what is only done once is done
        self.found.setdefault(key, []).append(self._clock(call))

    def times(self, rounds: int, notes: Sequence[str], seconds: float) -> ShapeTimes:
        """Everything that was found."""

        def of(name: str) -> tuple[Timed, ...]:
            return tuple(
                Timed(rows=rows, **_summary(each))
                for (what, rows), each in self.found.items()
                if what == name
            )

        heads = [
            HeadTime(setting=what, rows=rows, **_summary(each))
            for (what, rows), each in self.found.items()
            if isinstance(what, HeadSetting)
        ]
        return ShapeTimes(
            hidden=self.plan.hidden,
            rows=self.plan.rows,
            layers=self._layers,
            prefix=self.plan.prefix,
            dtype="bfloat16",
            environment=describe_environment(device=str(self.device), dtype="bfloat16"),
            heads=tuple(heads),
            drafter=of("drafter"),
            target=of("target"),
            logits=of("logits"),
            fuse=of("fuse"),
            notes=tuple(notes),
            rounds=max(rounds, 1),
            seconds=seconds,
        )


def _summary(seconds: Sequence[float]) -> dict[str, Any]:
    """The median, and its 95% interval from order statistics (David and Nagaraja, *Order Statistics*, 2003, 7.1)."""
    ordered, count = sorted(seconds), len(seconds)
    off = 0.98 * sqrt(count)
    low, high = max(0, floor(count / 2 - off)), min(count - 1, ceil(count / 2 + off))
    return {"seconds": median(ordered), "low": ordered[low], "high": ordered[high], "count": count}


class ColdClock:
    """Seconds of a call that finds nothing of its inputs in a cache.

    Args:
        cache: bytes that are read before each call on a CPU; on CUDA it is twice the device's cache.
    """

    def __init__(self, device: torch.device, cache: int) -> None:
        self._protocol = Protocol(device, seconds=_SECONDS)
        size = 2 * self._protocol.cache_bytes() if self._protocol.cuda else cache
        self._other = torch.ones(max(1, size // 4), device=device)

    def __call__(self, call: Callable[[], object]) -> float:
        if self._protocol.cuda:
            both = time_calls([partial(_one_by_one, self._read, call)], self._protocol)
            return max(_LEAST, both.seconds - time_calls([self._read], self._protocol).seconds)
        self._read()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def _read(self) -> Tensor:
        # Read, not written: what lies changed in a cache would have to be written back while the call is timed.
        return self._other.sum()


def _one_by_one(*calls: Callable[[], object]) -> list[object]:
    return [call() for call in calls]
