"""Choice of the number of CPU threads for decode cycles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ..core.threads import ThreadChoice, thread_counts, user_threads
from .control.control import Control, CycleFigures, Ready
from .engine import Decoder
from .interface import Plan, Wrap


class ThreadControl:
    """Control whose cycles run with the thread count measured as best; cycles of one plan are comparable.

    Args:
        control: chooses the plans. It ignores the seconds of cycles that try another thread count.
        threads: observes the cycles and chooses the thread count.
    """

    def __init__(self, control: Control, threads: ThreadChoice) -> None:
        self.control, self.threads = control, threads

    def begin(self) -> None:
        self.threads.begin()
        self.control.begin()

    def plan(self, ready: Ready | None = None) -> Plan:
        return self.control.plan(ready)

    def observe(self, cycle: CycleFigures) -> None:
        seconds = 0.0 if self.threads.trying else cycle.seconds
        self.threads.observe((cycle.plan, len(cycle.accepted)), cycle.seconds)
        self.control.observe(replace(cycle, seconds=seconds))


def choose_threads(decoders: Iterable[object], wrap: Wrap | None, *, sampled: bool) -> bool:
    """Let each decoder on a CPU choose its thread count, unless the user has fixed it.

    Args:
        wrap: of their passes. Compiled passes are valid for one thread count, which is kept.
        sampled: the temperature is above 0. The thread count is kept: it may affect the last bits, and a
            seed's output must not depend on a clock.

    Returns:
        Whether any decoder chooses.
    """
    chosen = False
    if user_threads() or wrap is not None or sampled:
        return chosen
    for decoder in decoders:
        if isinstance(decoder, Decoder) and decoder.target.device.type == "cpu":
            chosen = True
            counts = thread_counts(torch.get_num_threads())
            decoder.control = ThreadControl(decoder.control, ThreadChoice(counts, torch.set_num_threads))
    return chosen
