"""Acceptance of many draft heads at once, exact, without decoding: replaying the target's own answers.

Greedy verification, and the verifier ``match`` above temperature 0, give the target's own continuation whatever was
drafted, and drafts are a function of the context alone. So the drafts of every cycle that could begin in a known answer
can be made beforehand: along the accepted path the drafter is fed the answer's own tokens. What decides acceptance is
the rank of the answer's token among the head's tokens at every step, until one is not drafted; chains and trees of a
fixed shape follow from the ranks alone (``replay/walk.py``). Dynamic trees do not: which nodes they keep depends on
scores of the tokens that are not accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...core.console import ProgressBar
from ...core.errors import UsageError
from ...models.drafters.interface import CachedDrafter
from ...models.heads.registry import DraftHead, DraftState, base_of
from ...models.lean.model import LeanModel
from .block import Block, Parts, Placed
from .states import CycleBatch, StepRows, TargetReader, Unroller, check_continuations, join, text_contexts
from .supports import Support, support_of
from .types import MISSED, Continuation, Ranks, Replayed

# Full blocks of first steps that are drafted before they are scored: deeper steps have fewer rows.
_BLOCKS = 8


@dataclass(frozen=True)
class Drafting:
    """Draft heads over one drafter.

    Attributes:
        drafter: an EAGLE drafter.
        heads: by name; each built over this drafter, or over it with a part of its head's rows.
    """

    drafter: CachedDrafter
    heads: Mapping[str, DraftHead]


@torch.inference_mode()
def replay(
    model: LeanModel,
    draftings: Sequence[Drafting],
    continuations: Sequence[Continuation],
    *,
    levels: int,
    width: int,
    rows: int,
    label: str = "Replay",
) -> dict[str, Replayed]:
    """Ranks that heads give the target's own tokens, as decoding would draft them.

    Args:
        model: the target.
        draftings: heads by drafter; the target reads every text once for all drafters of the same layers.
        continuations: what the target wrote.
        levels: draft steps of a cycle at most.
        width: ranks that are told apart, below :data:`~.replay_types.MISSED`.
        rows: hidden rows that are scored at once.
        label: for the progress bar.

    Returns:
        by the heads' names.

    Raises:
        UsageError: a head that cannot be replayed, two of one name, or numbers out of range.
        MismatchError: a head that is not its drafter's.
        DataError: a text that the target cannot have written.
    """
    _check(draftings, levels, width, rows)
    check_continuations(model, continuations)
    asked = [one for one in continuations if len(one.tokens) > 1]
    total = cycle_offsets(continuations)[-1]
    supports = [_supports(one, width) for one in draftings]
    tallies = {
        name: _RankTally(total, levels, width, model.device) for one in draftings for name in one.heads
    }
    if asked:
        reader = _ReplayReader(model, draftings, asked, levels)
        with ProgressBar(label, total * len(draftings), "rows") as bar:
            begin = 0
            for batches in reader.batches(rows * _BLOCKS):
                for (parts, found), one in zip(supports, batches):
                    _score(parts, found, tallies, one, begin, rows)
                    bar.update(one.cycles)
                begin += batches[0].cycles
    return {name: tally.result() for name, tally in tallies.items()}


def cycle_offsets(continuations: Sequence[Continuation]) -> list[int]:
    """Where the rows of each continuation begin in ``Replayed.ranks``, and behind the last one their number."""
    lengths = [max(0, len(one.tokens) - 1) for one in continuations]
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()


class _ReplayReader:
    """Drafts continuations with every drafter."""

    def __init__(
        self,
        model: LeanModel,
        draftings: Sequence[Drafting],
        continuations: Sequence[Continuation],
        levels: int,
    ) -> None:
        self._device, self._continuations = model.device, continuations
        longest = max(len(one.prompt) + len(one.tokens) for one in continuations)
        most = max(len(one.tokens) for one in continuations)
        self._keys = [(one.drafter.reads, tuple(one.drafter.config.aux_layers)) for one in draftings]
        self._targets = {key: TargetReader(model, *key, longest) for key in dict.fromkeys(self._keys)}
        self._unrollers = [Unroller(one.drafter, levels, longest, most) for one in draftings]
        self._sizes = {head.context_size for one in draftings for head in one.heads.values()} - {0}

    def batches(self, cycles: int) -> Iterator[list[CycleBatch]]:
        """For as many continuations as make so many cycles, or the last ones, a batch of every drafting."""
        waiting: list[Continuation] = []
        count = 0
        for number, one in enumerate(self._continuations, 1):
            waiting.append(one)
            count += len(one.tokens) - 1
            if count >= cycles or number == len(self._continuations):
                yield self._drafted(waiting)
                waiting, count = [], 0

    def _drafted(self, continuations: Sequence[Continuation]) -> list[CycleBatch]:
        parts: list[list[tuple[int, list[StepRows]]]] = [[] for _ in self._unrollers]
        contexts: list[dict[int, Tensor]] = []
        for one in continuations:
            text = torch.tensor(one.prompt + one.tokens, device=self._device)
            states = {key: target(text) for key, target in self._targets.items()}
            contexts.append(text_contexts(one, self._sizes, self._device))
            for found, key, unroll in zip(parts, self._keys, self._unrollers):
                found.append((len(one.tokens) - 1, unroll(text, len(one.prompt), states[key])))
        return [join(found, contexts) for found in parts]


class _RankTally:
    """One head's ranks, and what it scored for them."""

    def __init__(self, total: int, levels: int, width: int, device: torch.device) -> None:
        self._ranks: Ranks = np.full((total, levels), MISSED, np.uint8)
        self._width = width
        # scored tokens, and rows, by step
        self._sums = torch.zeros(2, levels, dtype=torch.float64, device=device)

    def open(self, cycles: int) -> None:
        """A new batch."""
        self._fresh = torch.full(
            (cycles, self._ranks.shape[1]), MISSED, dtype=torch.uint8, device=self._sums.device
        )
        # (cycles,) whose tokens were all found so far
        self.alive = torch.ones(cycles, dtype=torch.bool, device=self._sums.device)

    def add(self, step: int, rows: Tensor, placed: Placed) -> None:
        """The answers on some of the batch's cycles; those that are no longer alive are left out."""
        asked = self.alive[rows]
        found = asked & placed.inside & (placed.rank < self._width)
        self._fresh[rows, step] = torch.where(found, placed.rank, MISSED).to(torch.uint8)
        self.alive[rows] = found
        self._sums[0, step] += torch.where(asked, placed.scored, 0.0).sum()
        self._sums[1, step] += asked.sum()

    def close(self, begin: int) -> None:
        """The batch's ranks are those from ``begin`` on."""
        self._ranks[begin : begin + len(self._fresh)] = self._fresh.cpu().numpy()

    def result(self) -> Replayed:
        sums, rows = self._sums.tolist()
        return Replayed(self._ranks, tuple(a / b if b else float("nan") for a, b in zip(sums, rows)))


def _supports(drafting: Drafting, width: int) -> tuple[Parts, dict[str, Support]]:
    parts = Parts(base_of(drafting.drafter), width)
    return parts, {name: support_of(head, parts) for name, head in drafting.heads.items()}


def _score(
    parts: Parts,
    supports: Mapping[str, Support],
    tallies: Mapping[str, _RankTally],
    batch: CycleBatch,
    begin: int,
    rows: int,
) -> None:
    """Ask the heads of one drafter about a batch, step by step, in blocks of ``rows``."""
    own = {name: tallies[name] for name in supports}
    for tally in own.values():
        tally.open(batch.cycles)
    for step, every in enumerate(batch.steps):
        alive = torch.stack([tally.alive for tally in own.values()]).any(0)
        wanted = every.at(alive[every.rows].nonzero()[:, 0])
        for place in range(0, len(wanted.rows), rows):
            part = wanted.at(torch.arange(place, min(place + rows, len(wanted.rows)), device=alive.device))
            block = _block(parts, batch, step, part)
            for name, support in supports.items():
                own[name].add(step, part.rows, support.place(block))
    for tally in own.values():
        tally.close(begin)


def _block(parts: Parts, batch: CycleBatch, step: int, part: StepRows) -> Block:
    ids = parts.base.target_ids
    places = torch.searchsorted(ids, part.wanted).clamp(max=len(ids) - 1)
    wanted = torch.where(ids[places] == part.wanted, places, -1)
    contexts = {size: context[part.rows] for size, context in batch.contexts.items()}
    state = DraftState(step, part.tokens, part.previous, len(part.rows))
    return Block(parts.base, state, part.hidden, wanted, contexts)


def _check(draftings: Sequence[Drafting], levels: int, width: int, rows: int) -> None:
    names = [name for one in draftings for name in one.heads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two draft heads have one name", got=", ".join(twice), expected="a name of its own for each"
        )
    if not all(one.heads for one in draftings):
        raise UsageError(
            "a drafter is replayed for its heads",
            got="no heads",
            expected="one head or more for each drafter",
        )
    if levels < 1 or rows < 1 or not 1 <= width < MISSED:
        raise UsageError(
            "a replay needs levels, ranks and rows",
            got=f"{levels} levels, width {width}, {rows} rows",
            expected=f"1 or more each, a width below {MISSED}",
        )
