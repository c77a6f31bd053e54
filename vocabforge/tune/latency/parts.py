"""Times of a cycle's parts, taken while real cycles run: every call meets the caches, states and sizes of decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...decode.accelerate.graphs import GraphCapture
from ...decode.engine import Decoder
from ...decode.proposers.interface import Commit, Draw, Plan
from ...decode.proposers.model import ModelProposer
from ...decode.proposers.registry import FITTING, Lap, Proposer, ProposerParts, make_proposer
from ...decode.request import Generation, Request
from ...decode.tree import DraftTree
from ...models.heads.interface import PreparesSteps
from ...models.heads.registry import DraftHead, DraftState
from ...models.target.interface import Target
from ..types import CycleSetting, TreeSetting, setting_of
from .records import PartKey, place_of
from .table import head_family

WARM = 2  # cycles of a run before its clock counts
OUTLIER = 3.0  # a cycle of more than this many times its run's median met something else


class Stopwatch:
    """Reads the clock after the device has done what it was asked."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.last = device, time.perf_counter()

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
    """

    laps: list[tuple[str, float]] = field(default_factory=list)
    heads: list[float] = field(default_factory=list)
    ahead: list[float] = field(default_factory=list)
    commit: float = 0.0


class TimedHead:
    """A draft head that records how long its answers take."""

    def __init__(self, head: DraftHead, device: torch.device) -> None:
        self._head, self._device = head, device
        self.cycle = CycleLaps()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._head, name)
        return partial(self._timed, found) if name == "best" else found  # a head may have none

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._timed(self._head.topk, hidden, k, state)
        return found

    def _timed(self, ask: Callable[..., Any], *given: Any) -> Any:
        watch = Stopwatch(self._device)
        found = ask(*given)
        self.cycle.heads.append(watch.lap())
        return found


class TimedPreparingHead(TimedHead):
    """The same for a head that begins before the drafter's pass."""

    def prepare(self, state: DraftState) -> DraftState:
        watch = Stopwatch(self._device)
        found: DraftState = self._head.prepare(state)  # type: ignore[attr-defined]
        self.cycle.ahead.append(watch.lap())
        return found


class TimedProposer:
    """A model-based proposer that records how long each step of its drafting and its commits take."""

    def __init__(self, proposer: ModelProposer, device: torch.device) -> None:
        self._watch = Stopwatch(device)
        kind = TimedPreparingHead if isinstance(proposer.head, PreparesSteps) else TimedHead
        self._timed = kind(proposer.head, device)
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


@dataclass(frozen=True)
class CycleRun:
    """Some cycles of one kind.

    Attributes:
        head: place in the list of draft heads; -1 decodes plainly.
        tree: what is drafted; None if nothing is.
        prefix: positions that the caches hold about its middle.
    """

    head: int
    tree: TreeSetting | None
    batch: int
    prefix: int


class CycleRunner:
    """Runs cycles of a target, a drafter and its draft heads.

    Args:
        drafter: trained drafter, or a draft model of the target's vocabulary.
        prompts: token ids that prefixes are made of.
        capture: makes a recorder of captured cycles; None runs them step by step.
    """

    def __init__(
        self,
        model: Target,
        drafter: Any,
        heads: Sequence[DraftHead],
        prompts: Sequence[Sequence[int]],
        capture: Callable[[], GraphCapture] | None = None,
    ) -> None:
        self.model, self.drafter, self.heads, self.capture = model, drafter, heads, capture
        self._name = FITTING[getattr(drafter, "kind", "draft-model")][0]
        self.settings = [setting_of(head) for head in heads]
        self._text = [token for prompt in prompts for token in prompt]

    def proposer(self, head: int, tree: TreeSetting) -> ModelProposer:
        """A new proposer that drafts step by step.

        Raises:
            UsageError: one that drafts without a model's states.
        """
        parts = ProposerParts(self.model, self.drafter, self.heads[head], tree.options)
        found = make_proposer(self._name, parts)
        if not isinstance(found, ModelProposer):
            raise UsageError(
                "only drafting with a model's states can be timed by part",
                got=f"the proposer {self._name}",
                expected="a trained drafter, or a draft model of the target's vocabulary",
            )
        found.by_steps = True
        return found

    def setting(self, run: CycleRun) -> CycleSetting:
        """What the latency table calls a run that drafts."""
        assert run.tree is not None
        return CycleSetting(head=self.settings[run.head], tree=run.tree, batch=run.batch, prefix=run.prefix)

    def timed(self, run: CycleRun, count: int) -> list[tuple[PartKey, float]]:
        """Seconds of the parts of ``count`` cycles that draft, step by step."""
        assert run.tree is not None
        timed = TimedProposer(self.proposer(run.head, run.tree), self.model.device)
        verify: list[float] = []
        marks: list[float] = []

        def after(result: Generation) -> None:
            marks.append(time.perf_counter())
            verify.append(result.timings["verify"])

        self._cycles(run, timed, None, count, after)
        cycles, verified, whole = timed.cycles[WARM:], _steps(verify), _steps(marks)
        return [
            one
            for place in usual(whole)
            for one in self._parts(run, run.tree, cycles[place], verified[place], whole[place])
        ]

    def _parts(
        self, run: CycleRun, tree: TreeSetting, cycle: CycleLaps, verify: float, whole: float
    ) -> list[tuple[PartKey, float]]:
        setting = self.setting(run)
        head, at = setting.head, setting.sizes
        ahead = [0.0, *cycle.ahead, *[0.0] * tree.levels]  # none before the root's
        rest = whole - verify - cycle.commit - sum(seconds for _, seconds in cycle.laps)
        found = [
            (place_of("verify", tree.kind, **at), verify),
            (place_of("commit", tree.kind, **at), cycle.commit),
            (place_of("rest", "", **at), max(0.0, rest)),
        ]
        step = 0
        for part, seconds in cycle.laps:
            if part == "layers":
                name, family = ("layer", tree.kind) if step else ("start", "")
                found.append((place_of(name, family, **at), max(0.0, seconds - ahead[step])))
            elif part == "head":
                alone, where = cycle.heads[step], head_family(head.family, first=step == 0)
                found.append((place_of("head", where, **at, scored=head.at(step)), alone + ahead[step]))
                position = "first" if step == 0 else "last" if step == tree.depth else "further"
                found.append((place_of("grow", f"{tree.kind} {position}", **at), max(0.0, seconds - alone)))
                step += 1
            else:
                found.append((place_of("choose", tree.kind, **at), seconds))
        return found

    def whole(self, run: CycleRun, count: int) -> list[float]:
        """Host seconds from one committed cycle to the next, as decoding pays them: captured if it captures."""
        proposer = None if run.tree is None else self.proposer(run.head, run.tree)
        marks: list[float] = []
        capture = None if self.capture is None else self.capture()
        self._cycles(run, proposer, capture, count, lambda _: marks.append(time.perf_counter()))
        found = _steps(marks)
        return [found[place] for place in usual(found)]

    def prefill(self, tokens: int, head: int) -> float:
        """Seconds of reading a prompt up to its first new token; ``head`` -1 decodes plainly."""
        proposer = None if head < 0 else self.proposer(head, TreeSetting.chain(0))
        result = Generation()
        decoder = Decoder(self.model, proposer)
        stream = decoder.stream(Request(self.prompt(tokens, 0), 4, ()), result)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        return result.timings["prefill"]

    def prompt(self, tokens: int, row: int) -> list[int]:
        """As many tokens of the prompts, beginning elsewhere for every row."""
        first = row * (len(self._text) // 7 + 1) % len(self._text)
        repeats = -(-(first + tokens) // len(self._text))
        return (self._text * repeats)[first : first + tokens]

    def _cycles(
        self,
        run: CycleRun,
        proposer: Proposer | Any | None,
        capture: GraphCapture | None,
        count: int,
        after: Callable[[Generation], object],
    ) -> None:
        """Decode ``WARM + count`` cycles; ``after`` each, and after the prompts, it is called with the first result."""
        levels = run.tree.levels if run.tree is not None else 0
        limit = self.model.config.max_positions
        total = min(WARM + count, (limit - 4) // (levels + 1) - 2)  # as many as are sure to fit
        if total <= WARM:
            raise UsageError(
                "the target's context is too short to time such cycles",
                got=f"{limit:,} positions",
                expected=f"more than {(WARM + 3) * (levels + 1) + 4:,} for cycles of {levels} levels",
            )
        most = (levels + 1) * (total + 2)  # more than these cycles can commit
        # The cycles should be about the prefix, each about two tokens long if something is drafted.
        tokens = min(max(2, run.prefix - total * (2 if levels else 1) // 2), limit - most)
        # Room as in use: in caches cut to these cycles, passes would read fewer slots.
        decoder = Decoder(self.model, proposer, rows=run.batch, wrap=capture)
        requests = [Request(self.prompt(tokens, row), most, ()) for row in range(run.batch)]
        results = [Generation() for _ in requests]
        stream = decoder.stream_batch(requests, results)
        for number in range(total + 1):
            for _ in requests:
                next(stream)
            if number == 0:
                results[0].timings.setdefault("verify", 0.0)
            after(results[0])
        stream.close()  # type: ignore[attr-defined]


def _steps(marks: Sequence[float]) -> list[float]:
    """Differences of neighbours without the warm-up; the first mark is before any cycle."""
    return [after - before for before, after in zip(marks[WARM:], marks[WARM + 1 :])]


def usual(seconds: Sequence[float]) -> list[int]:
    """Indices of the cycles of a run that are no outliers."""
    most = OUTLIER * median(seconds)
    return [place for place, one in enumerate(seconds) if one <= most]
