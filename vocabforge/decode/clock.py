"""Where the time of a request goes."""

from __future__ import annotations

import time

import torch

from .result import Generation


class Clock:
    """Seconds by part, measured between laps; the time a consumer of the stream takes is not counted."""

    def __init__(self, result: Generation, device: torch.device) -> None:
        self._result, self._device = result, device
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        if self._device.type == "cuda":  # else a part's time would count where its results are first read
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if part != "other":  # the consumer's time
            name = "other" if part == "commit" else part
            self._result.timings[name] = self._result.timings.get(name, 0.0) + now - self._last
        self._last = now

    def finish(self) -> None:
        timings = self._result.timings
        self._result.prefill_s = timings["prefill"]
        self._result.decode_s = sum(seconds for part, seconds in timings.items() if part != "prefill")
