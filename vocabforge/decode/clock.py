"""Where the time of requests goes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from .result import Generation

PREFILL = "prefill"


class Clock:
    """Seconds by part, measured between laps and counted for every request that is in work.

    The time that the consumer of a stream takes is not counted: call :meth:`resume` after it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()
        self.results: Sequence[Generation] = ()

    def resume(self) -> None:
        self._last = time.perf_counter()

    def now(self) -> float:
        """When the last lap ended, in seconds."""
        return self._last

    def lap(self, part: str) -> float:
        """Count what passed since the last lap as ``part``; returns the seconds."""
        if self._device.type == "cuda":  # else a part's time would count where its results are first read
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        for result in self.results:
            result.timings[part] = result.timings.get(part, 0.0) + passed
        return passed


def total_up(result: Generation) -> None:
    """Fill the seconds of a finished request."""
    result.prefill_s = result.timings.get(PREFILL, 0.0)
    result.decode_s = sum(seconds for part, seconds in result.timings.items() if part != PREFILL)
