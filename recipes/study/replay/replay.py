"""Acceptance of many draft heads at once, exact, without decoding: replaying the target's own answers.

Greedy verification, and the verifier ``match`` above temperature 0, give the target's own continuation whatever was
drafted, and drafts are a function of the context alone. So the drafts of every cycle that could begin in a known answer
can be made beforehand: along the accepted path the drafter is fed the answer's own tokens. What decides acceptance is
the rank of the answer's token among the head's tokens at every step, until one is not drafted; chains and trees of a
fixed shape follow from the ranks alone (``replay/walk.py``). Dynamic trees do not: which nodes they keep depends on
scores of the tokens that are not accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vocabforge.core.errors import UsageError
from vocabforge.core.progress import ProgressBar
from vocabforge.models.drafters.interface import CachedDrafter
from vocabforge.models.heads.registry import DraftHead, DraftState, base_of
from vocabforge.models.lean.model import LeanModel

from .block import Block, Parts
from .states import CycleBatch, StepRows, TargetReader, Unroller, text_contexts
from .supports import support_of
from .types import MISSED, Continuation, Ranks, Replayed

# Full blocks of first steps that are drafted before they are scored: deeper steps have fewer rows.
_BLOCKS = 8


@dataclass(frozen=True)
class Drafting:
    """Draft heads over one drafter.

    Attributes:
        drafter: an EAGLE drafter.
        heads: by name, different for all draftings; each built over this drafter, or over a part of its head's rows.
    """

    drafter: CachedDrafter
    heads: dict[str, DraftHead]


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
    """Ranks that heads give the target's own tokens, as decoding would draft them, by the heads' names.

    Args:
        draftings: heads by drafter; the target reads every text once for all drafters of the same layers.
        continuations: the target's answers.
        levels: draft steps of a cycle at most.
        width: ranks that are distinguished, below :data:`~.types.MISSED`.
        rows: hidden rows that are scored at once.

    Raises:
        UsageError: a head that cannot be replayed, or a width out of range.
        MismatchError: a head that is not its drafter's.
    """
    if not 1 <= width < MISSED:
        raise UsageError("a replay distinguishes too many ranks", got=width, expected=f"1 to {MISSED - 1}")
    asked = [one for one in continuations if len(one.tokens) > 1]
    total = cycle_offsets(continuations)[-1]
    scorers = [_Scorer(one, total, levels, width) for one in draftings]
    if asked:
        with ProgressBar(label, total * len(draftings), "rows") as bar:
            for batches in _drafted(model, draftings, asked, levels, rows * _BLOCKS):
                for scorer, batch in zip(scorers, batches):
                    scorer.score(batch, rows)
                    bar.update(batch.cycles)
    return {name: found for scorer in scorers for name, found in scorer.results().items()}


def cycle_offsets(continuations: Sequence[Continuation]) -> list[int]:
    """Where the rows of each continuation begin in ``Replayed.ranks``, and behind the last one their number."""
    lengths = [max(0, len(one.tokens) - 1) for one in continuations]
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).tolist()


def _drafted(
    model: LeanModel,
    draftings: Sequence[Drafting],
    continuations: Sequence[Continuation],
    levels: int,
    cycles: int,
) -> Iterator[list[CycleBatch]]:
    """For as many continuations as make so many cycles, or the last ones, a batch of every drafting."""
    longest = max(len(one.prompt) + len(one.tokens) for one in continuations)
    most = max(len(one.tokens) for one in continuations)
    keys = [(one.drafter.reads, tuple(one.drafter.config.aux_layers)) for one in draftings]
    targets = {key: TargetReader(model, *key, longest) for key in dict.fromkeys(keys)}
    unrollers = [Unroller(one.drafter, levels, longest, most) for one in draftings]
    sizes = {head.context_size for one in draftings for head in one.heads.values()} - {0}
    waiting: list[list[CycleBatch]] = [[] for _ in draftings]
    for number, one in enumerate(continuations, 1):
        text = torch.tensor(one.prompt + one.tokens, device=model.device)
        states = {key: read(text) for key, read in targets.items()}
        contexts = text_contexts(one, sizes, model.device)
        for found, key, unroll in zip(waiting, keys, unrollers):
            steps = unroll(text, len(one.prompt), states[key])
            found.append(CycleBatch(len(one.tokens) - 1, steps, contexts))
        if sum(batch.cycles for batch in waiting[0]) >= cycles or number == len(continuations):
            yield [CycleBatch.join(found) for found in waiting]
            waiting = [[] for _ in draftings]


class _Scorer:
    """Asks the heads of one drafter about one batch after the other.

    Args:
        total: cycles of all batches.
    """

    def __init__(self, drafting: Drafting, total: int, levels: int, width: int) -> None:
        self._parts = Parts(base_of(drafting.drafter), width)
        self._supports = {name: support_of(head, self._parts) for name, head in drafting.heads.items()}
        self._ranks: Ranks = np.full((len(self._supports), total, levels), MISSED, np.uint8)
        self._done = 0  # cycles
        device = self._parts.base.weight.device
        # (heads, 2, levels): scored tokens, and rows, by step
        self._sums = torch.zeros(len(self._supports), 2, levels, dtype=torch.float64, device=device)

    def score(self, batch: CycleBatch, rows: int) -> None:
        """In blocks of ``rows``."""
        heads, _, levels = self._ranks.shape
        device, size = self._sums.device, self._parts.width
        ranks = torch.full((heads, batch.cycles, levels), MISSED, dtype=torch.uint8, device=device)
        # (heads, cycles) whose tokens were all found so far
        alive = torch.ones(heads, batch.cycles, dtype=torch.bool, device=device)
        for block, place in self._blocks(batch, rows, alive):
            step = block.state.step
            for head, support in enumerate(self._supports.values()):
                rank, inside, scored = support(block)
                asked = alive[head, place]
                found = asked & inside & (rank < size)
                ranks[head, place, step] = torch.where(found, rank, MISSED).to(torch.uint8)
                alive[head, place] = found
                self._sums[head, 0, step] += (asked * scored).sum()
                self._sums[head, 1, step] += asked.sum()
        self._ranks[:, self._done : self._done + batch.cycles] = ranks.cpu().numpy()
        self._done += batch.cycles

    def _blocks(self, batch: CycleBatch, rows: int, alive: Tensor) -> Iterator[tuple[Block, Tensor]]:
        """Blocks and their cycles; those that no head drafts on are left out."""
        for step, every in enumerate(batch.steps):
            wanted = every.at(alive.any(0)[every.rows].nonzero()[:, 0])
            for place in range(0, len(wanted.rows), rows):
                part = wanted.at(slice(place, place + rows))
                yield self._block(batch, step, part), part.rows

    def _block(self, batch: CycleBatch, step: int, part: StepRows) -> Block:
        base = self._parts.base
        ids = base.target_ids
        places = torch.searchsorted(ids, part.wanted).clamp(max=len(ids) - 1)
        wanted = torch.where(ids[places] == part.wanted, places, -1)
        contexts = {most: context[part.rows] for most, context in batch.contexts.items()}
        state = DraftState(step, part.tokens, part.previous, len(part.rows))
        return Block(base, state, part.hidden, wanted, contexts)

    def results(self) -> dict[str, Replayed]:
        """Ranks, and mean tokens scored, by the heads' names."""
        means = (self._sums[:, 0] / self._sums[:, 1]).tolist()  # NaN if no row was scored
        return {
            name: Replayed(ranks, tuple(scored))
            for name, ranks, scored in zip(self._supports, self._ranks, means)
        }
