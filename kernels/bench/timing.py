"""Timing on a GPU: rotated inputs, graph replays and events, medians of many repeats.

On a CPU the same calls run in the same order under a host clock, so the code can be tested without a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


def measure_ceilings(protocol: Protocol) -> DeviceCeilings:
    """Measure a large copy, a large bf16 product and the smallest kernel, on random data."""
    copied, edge = (1 << 31, 8192) if protocol.cuda else (1 << 22, 192)
    device = protocol.device
    random = torch.Generator(device=device).manual_seed(0)
    source = torch.randint(256, (copied,), generator=random, device=device, dtype=torch.uint8)
    target, one = torch.empty_like(source), torch.ones(1, device=device)
    a, b = (torch.randn((edge, edge), generator=random, device=device).to(torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)

    def seconds(call: Call) -> float:
        return time_calls([call], protocol).seconds

    found = DeviceCeilings(
        copy=2 * copied / seconds(lambda: target.copy_(source)),
        matmul=2 * edge**3 / seconds(lambda: torch.mm(a, b, out=out)),
        node=seconds(lambda: one.neg_()),
        sizes={"copied_bytes": copied, "matmul_edge": edge},
    )
    if protocol.cuda:
        del source, target, a, b, out
        torch.cuda.empty_cache()  # free memory for other processes
    return found


Call = Callable[[], Any]

_CPU_CACHE = 1 << 20  # large enough to exercise rotation
_LEAST_SECONDS = 2e-4  # minimum per replay, to hide its launch time
_MOST_TURNS = 64
_START_SECONDS = 5e-5  # longer than a graph launch
_CYCLES_PER_SECOND = 2e9  # upper bound for a GPU
_WARM = 2


@dataclass(frozen=True)
class Protocol:
    """Settings of a measurement.

    Attributes:
        device: device of all tensors.
        seconds: duration of the repeats of one measurement.
        least, most: bounds on the number of repeats.
        most_copies: maximum copies of a case's inputs.
    """

    device: torch.device
    seconds: float = 0.1
    least: int = 10
    most: int = 100
    most_copies: int = 64

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def cache_bytes(self) -> int:
        """Return the size of the cache that inputs must exceed."""
        if not self.cuda:
            return _CPU_CACHE
        return int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    def copies(self, touched: float, held: float) -> int:
        """Return the number of input sets that together are twice the cache, within the memory limit.

        Args:
            touched: bytes moved by one call.
            held: bytes of an additional set.
        """
        wanted = int(2 * self.cache_bytes() // max(touched, 1.0)) + 1
        room = 0.25 * torch.cuda.mem_get_info(self.device)[0] if self.cuda else 64e6
        return max(1, min(wanted, self.most_copies, int(room // max(held, 1.0)) + 1))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Timing:
    """Time of one call.

    Attributes:
        seconds: median over all repeats.
        low, high: 10th and 90th percentile.
        repeats: number of measurements, each over ``calls`` calls.
        method: ``graph`` replays, ``events``, or a host ``clock``.
        problem: why no graph could be captured.
    """

    seconds: float
    low: float
    high: float
    repeats: int
    calls: int
    method: str
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, with times in microseconds."""
        found = {name: getattr(self, name) for name in ("repeats", "calls", "method", "problem")}
        return {"us": self.seconds * 1e6, "low_us": self.low * 1e6, "high_us": self.high * 1e6, **found}


class Replay:
    """A call repeated on the same memory: a captured CUDA graph, or on a CPU a repeated call.

    Args:
        call: function that allocates only through torch and never waits for the device.
        device: device of the call.

    Attributes:
        outputs: results of the call, overwritten by each :meth:`replay`.

    Raises:
        RuntimeError: the call cannot be captured.
    """

    def __init__(self, call: Call, device: torch.device) -> None:
        self._call, self._graph = call, None
        if device.type != "cuda":
            self.outputs = call()
            return
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM):
                call()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.outputs = call()
        self._graph = graph

    def replay(self) -> None:
        """Repeat the call and overwrite :attr:`outputs`."""
        if self._graph is not None:
            self._graph.replay()
            return
        for old, new in zip(_tensors(self.outputs), _tensors(self._call())):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


def _tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [one for part in result for one in _tensors(part)] if isinstance(result, (tuple, list)) else []


def time_calls(calls: Sequence[Call], protocol: Protocol, *, graph: bool = True) -> Timing:
    """Time one call by alternating between calls that differ only in their inputs.

    Args:
        calls: one call per set of inputs.
        graph: whether to replay a graph of all calls; if capture fails, events are used and the reason is
            recorded.
    """
    for call in calls[:_WARM]:
        call()
    protocol.synchronize()
    calls, problem = calls[: _fitting(calls[0], protocol)], None
    if not protocol.cuda:
        return summary(_repeat(_all(calls), _clock, protocol), len(calls), "clock", None)
    started = _events(_all(calls), protocol.device)
    if graph:
        turns = _turns(_queued(_all(calls), protocol.device, 1.5 * started))
        try:
            replay = Replay(_all(calls, turns), protocol.device)
        except RuntimeError as error:  # torch's error if capture forbids a call
            problem = str(error).splitlines()[0]
        else:
            return summary(_repeat(replay.replay, _queued, protocol), turns * len(calls), "graph", None)
    turns = _turns(started)
    return summary(_repeat(_all(calls, turns), _events, protocol), turns * len(calls), "events", problem)


def _all(calls: Sequence[Call], turns: int = 1) -> Call:
    def run() -> None:
        for _ in range(turns):
            for call in calls:
                call()

    return run


def _fitting(call: Call, protocol: Protocol) -> int:
    """Return the number of calls per repeat, limited so that slow calls do not use up the time."""
    measure = _events if protocol.cuda else _clock
    return max(1, int(protocol.seconds / 4 / max(measure(call, protocol.device), 1e-9)))


def _turns(seconds: float) -> int:
    """Return how often to run all calls in one repeat, given their total seconds."""
    return min(_MOST_TURNS, int(_LEAST_SECONDS / max(seconds, 1e-9)) + 1)


def _clock(action: Call, device: torch.device) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _events(action: Call, device: torch.device) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    action()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _queued(action: Call, device: torch.device, busy: float = _START_SECONDS) -> float:
    """Time the action on the device only: keep it busy while queueing the action, to hide launch time."""
    torch.cuda._sleep(int(busy * _CYCLES_PER_SECOND))
    return _events(action, device)


def _repeat(action: Call, measure: Callable[[Call, torch.device], float], protocol: Protocol) -> list[float]:
    wanted = int(protocol.seconds / max(measure(action, protocol.device), 1e-9))
    count = max(protocol.least, min(wanted, protocol.most))
    return [measure(action, protocol.device) for _ in range(count)]


def summary(repeats: Sequence[float], calls: int, method: str, problem: str | None) -> Timing:
    """Convert the seconds of repeats to the time of one call."""
    each = sorted(seconds / calls for seconds in repeats)
    low, high = each[len(each) // 10], each[-1 - len(each) // 10]
    return Timing(statistics.median(each), low, high, len(each), calls, method, problem)


@dataclass(frozen=True)
class DeviceCeilings:
    """Measured limits of the device.

    Attributes:
        copy: bytes/s of a device-to-device copy, reads plus writes.
        matmul: operations/s of a bf16 matrix product.
        node: seconds of the smallest possible kernel in a graph.
        sizes: sizes used for the measurements.
    """

    copy: float
    matmul: float
    node: float
    sizes: dict[str, int] = field(default_factory=dict)

    def floor(self, moved: float, operations: float) -> tuple[float, str]:
        """Return the minimum possible seconds and the limiting factor: ``bytes`` or ``operations``."""
        by_bytes, by_operations = moved / self.copy, operations / self.matmul
        return (by_bytes, "bytes") if by_bytes >= by_operations else (by_operations, "operations")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values in the tables' units."""
        return {
            "copy_gb_per_s": self.copy / 1e9,
            "bf16_matmul_tflop_per_s": self.matmul / 1e12,
            "graph_node_us": self.node * 1e6,
            **self.sizes,
        }
