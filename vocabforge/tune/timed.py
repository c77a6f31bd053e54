"""A proposer that tells how long each step of its drafting takes, inside real cycles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..decode.draft import Commit, Draw, Plan
from ..decode.proposer_model import ModelProposer
from ..decode.proposers import Lap
from ..decode.tree import DraftTree
from ..models.head_types import PreparesSteps
from ..models.heads import DraftHead, DraftState


@dataclass
class Stopwatch:
    """Reads the clock after the device has done what it was asked."""

    device: torch.device
    last: float = field(default_factory=lambda: time.perf_counter())

    def lap(self) -> float:
        """Seconds since the last reading."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        passed, self.last = now - self.last, now
        return passed


@dataclass
class CycleLaps:
    """One cycle's seconds.

    Attributes:
        laps: of drafting, in order: ``layers`` and ``head`` a level, then ``draft``.
        heads: of the draft head alone, one a level.
        ahead: that the head took inside of ``layers`` laps, before the drafter's pass.
        commit: of the drafter.
        verify: the target's pass and the choice.
        whole: from one committed cycle to the next.
    """

    laps: list[tuple[str, float]] = field(default_factory=list)
    heads: list[float] = field(default_factory=list)
    ahead: list[float] = field(default_factory=list)
    commit: float = 0.0
    verify: float = 0.0
    whole: float = 0.0

    @property
    def rest(self) -> float:
        """What is none of the others."""
        return self.whole - self.verify - self.commit - sum(seconds for _, seconds in self.laps)


class TimedHead:
    """A draft head that tells how long its answers take."""

    def __init__(self, head: DraftHead, watch: Stopwatch) -> None:
        self._head, self._watch = head, watch
        self.cycle = CycleLaps()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        watch = Stopwatch(self._watch.device)
        found = self._head.topk(hidden, k, state)
        self.cycle.heads.append(watch.lap())
        return found


class TimedPreparingHead(TimedHead):
    """The same of a head that begins before the drafter's pass."""

    def prepare(self, state: DraftState) -> DraftState:
        watch = Stopwatch(self._watch.device)
        found: DraftState = self._head.prepare(state)  # type: ignore[attr-defined]
        self.cycle.ahead.append(watch.lap())
        return found


class TimedProposer:
    """A proposer that tells how long each step of its drafting and its commits take.

    Args:
        proposer: a model-based one; it is taken apart and put together with a timed head.
    """

    def __init__(self, proposer: ModelProposer, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        kind = TimedPreparingHead if isinstance(proposer.head, PreparesSteps) else TimedHead
        self._timed = kind(proposer.head, self._watch)
        self._inner = ModelProposer(proposer.backend, self._timed, proposer.policy)
        self.cycles: list[CycleLaps] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        self._timed.cycle = cycle = CycleLaps()
        self.cycles.append(cycle)
        self._watch.lap()

        def note(part: str) -> None:
            lap(part)
            cycle.laps.append((part, self._watch.lap()))

        return self._inner.propose(roots, plan, draws, note)

    def commit(self, commit: Commit) -> None:
        self._watch.lap()
        self._inner.commit(commit)
        if self.cycles:
            self.cycles[-1].commit = self._watch.lap()
