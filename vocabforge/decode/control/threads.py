"""Cycles on a CPU run with as many threads as pay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ...core.threads import ThreadChoice, thread_counts, user_threads
from ..engine import Decoder
from ..proposers.interface import Plan, Wrap
from .control import Control, CycleFigures, Ready


class ThreadControl:
    """A control whose cycles run with the number of threads that was measured best; cycles of one plan are alike.

    Args:
        control: chooses the plans. The seconds of a cycle that runs with another number of threads, to try it, teach it
            nothing.
        threads: told of the cycles.
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
    """Let each decoder on a CPU choose its own number of threads, unless the user has fixed it; whether one does.

    Args:
        wrap: of their passes. Compiled ones hold for one number of threads, which stays.
        sampled: the temperature is above 0. The number stays: it may decide the last bits, and a seed's output must not
            depend on a clock.
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
