"""Timing on a GPU: rotated inputs, graph replays and events, medians of many repeats.

On a CPU the same calls run in the same order under a host clock, so the code can be tested without a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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
    seconds: float = 0.03
    least: int = 10
    most: int = 100
    most_copies: int = 64

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def cache_bytes(self) -> int:
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


class Replay:
    """A call repeated on the same memory: a captured CUDA graph, or on a CPU a repeated call.

    Args:
        call: function that allocates only through torch and never waits for the device.
        device: device of the call.

    Attributes:
        outputs: result of the call, of which a tuple of tensors is overwritten by each :meth:`replay`.

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
        for old, new in zip(self.outputs, self._call()):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)


def time_calls(calls: Sequence[Call], protocol: Protocol) -> dict[str, Any]:
    """Time one call by alternating between calls that differ only in their inputs.

    On a GPU a graph of all calls is replayed.

    Returns:
        Plain JSON of one call: median ``us`` with 10th and 90th percentile ``low_us`` and ``high_us``, and the
        number of ``calls`` in each measurement.

    Raises:
        RuntimeError: the calls cannot be captured.
    """
    device = protocol.device
    measure = _events if protocol.cuda else _clock
    for call in calls[:_WARM]:
        call()
    if protocol.cuda:
        torch.cuda.synchronize(device)
    # Slow calls must not use up the time.
    calls = calls[: max(1, int(protocol.seconds / 4 / max(measure(calls[0], device), 1e-9)))]
    action, turns = _all(calls), 1
    if protocol.cuda:
        seconds, measure = _queued(action, device, 1.5 * _events(action, device)), _queued
        turns = min(_MOST_TURNS, int(_LEAST_SECONDS / max(seconds, 1e-9)) + 1)
        action = Replay(_all(calls, turns), device).replay
    wanted = int(protocol.seconds / max(measure(action, device), 1e-9))
    count = max(protocol.least, min(wanted, protocol.most))
    each = sorted(measure(action, device) * 1e6 / (turns * len(calls)) for _ in range(count))
    low, high = each[len(each) // 10], each[-1 - len(each) // 10]
    return {"us": statistics.median(each), "low_us": low, "high_us": high, "calls": turns * len(calls)}


def _all(calls: Sequence[Call], turns: int = 1) -> Call:
    def run() -> None:
        for _ in range(turns):
            for call in calls:
                call()

    return run


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


def ceilings(protocol: Protocol) -> dict[str, float]:
    """Measure a large copy (bytes/s, read and written), a bf16 product (operations/s) and the smallest kernel (us)."""
    copied, edge = (1 << 31, 8192) if protocol.cuda else (1 << 22, 192)
    random = torch.Generator(device=protocol.device).manual_seed(0)
    source = torch.randint(256, (copied,), generator=random, device=protocol.device, dtype=torch.uint8)
    target, scalar = torch.empty_like(source), torch.ones(1, device=protocol.device)
    a, b = (torch.randn((edge, edge), generator=random, device=protocol.device).bfloat16() for _ in range(2))
    out = torch.empty_like(a)

    def seconds(call: Call) -> float:
        return float(time_calls([call], protocol)["us"]) / 1e6

    return {
        "copy": 2 * copied / seconds(lambda: target.copy_(source)),
        "product": 2 * edge**3 / seconds(lambda: torch.mm(a, b, out=out)),
        "node_us": seconds(lambda: scalar.neg_()) * 1e6,
    }
