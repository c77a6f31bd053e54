"""Draft states along the target's own tokens: those of every step of every cycle that could begin.

Decoding's own passes, teacher forced: the target reads prompt and answer once, the drafter writes the step-0 key of
every position, and the cycles of all roots are then drafted side by side, each seeing the positions before its root
and its own draft nodes. It equals the unroll of training (``train.ttt``), but only the answer's rows are drafted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vocabforge.decode.proposers.context import ContextTokens
from vocabforge.decode.target_side import TargetSide
from vocabforge.models.drafters.interface import CachedDrafter
from vocabforge.models.kv_cache import CacheView
from vocabforge.models.lean.model import LeanModel

from .types import Continuation


@dataclass(frozen=True)
class StepRows:
    """The M cycles that reach one draft step: (M,) int64 ``rows`` (numbers of the cycles), ``tokens`` fed and
    ``wanted`` (the target's own), (M, H) ``previous`` states fed and (M, .) ``hidden`` that the head reads.
    """

    rows: Tensor
    tokens: Tensor
    previous: Tensor
    hidden: Tensor
    wanted: Tensor

    def at(self, places: Tensor | slice) -> StepRows:
        """Some of them."""
        return StepRows(*(part[places] for part in vars(self).values()))


class TargetReader:
    """The target's states of texts of at most ``longest`` tokens, read as decoding reads a prompt."""

    def __init__(self, model: LeanModel, reads: str, aux_layers: tuple[int, ...], longest: int) -> None:
        self._side, self._reads = TargetSide(model, aux_layers, 1), reads
        self._side.allocate(longest, 0)

    def __call__(self, text: Tensor) -> Tensor:
        """(T,) tokens -> (T, .) states."""
        self._side.set_length(0, 0)
        chunks = self._side.prefill(0, text, self._reads)[1]
        return torch.cat([chunk.states for chunk in chunks if chunk.states is not None])


class Unroller:
    """Drafts all cycles of a continuation along its own tokens.

    Args:
        drafter: whose next state is a function of its path.
        levels: draft steps at most.
        longest, most: tokens of the longest text and of the longest answer.
    """

    def __init__(self, drafter: CachedDrafter, levels: int, longest: int, most: int) -> None:
        self.drafter, self.levels = drafter, levels
        capacity = longest + (levels - 1) * most
        self._cache = drafter.new_cache(1, capacity)
        self._slots = torch.arange(capacity, device=self._cache.device)
        drafter.ensure_positions(longest + levels)

    def __call__(self, text: Tensor, prompt: int, states: Tensor) -> list[StepRows]:
        """Every draft step's rows; row i is the cycle whose root is token i of the answer.

        Args:
            text: (T,) tokens of prompt and answer, two of the answer at least.
            prompt: tokens of the prompt.
            states: (T - 2 or more, .) the target's states from the text's beginning.
        """
        count = len(text) - 2  # the last root is the last token but one, its row one before it
        fused = self.drafter.fuse(states[None, :count])  # (1, T - 2, H)
        slots = self._slots[:count]
        g = self._extend(text[1 : count + 1], fused, slots, slots, slots <= slots[:, None])
        own = slice(prompt - 1, count)  # the step-0 rows of the roots
        previous, g = fused[0, own], g[own]
        places = slots[own]
        found = [self._rows(text, prompt, 0, previous, g)]
        every = len(g) - 1  # cycles that reach the second step
        for k in range(1, min(self.levels, len(g))):
            previous = g[: len(g) - 1]  # the last one has nothing left to predict
            n = len(previous)
            first = count + (k - 1) * every
            before = slots <= places[:n, None]  # (n, T - 2)
            same = self._slots[:every] == self._slots[:n, None]  # its own nodes, one a step
            mask = torch.cat([before, same.repeat(1, k)], 1)[:, : first + n]
            fed = text[prompt + k : prompt + k + n]
            g = self._extend(fed, previous[None], places[:n] + k, self._slots[first : first + n], mask)
            found.append(self._rows(text, prompt, k, previous, g))
        return found

    def _extend(self, fed: Tensor, g: Tensor, position: Tensor, slots: Tensor, mask: Tensor) -> Tensor:
        """(N, H) next states of N rows."""
        return self.drafter.extend(fed[None], g, position[None], CacheView(self._cache, slots, mask))[0][0]

    def _rows(self, text: Tensor, prompt: int, step: int, previous: Tensor, g: Tensor) -> StepRows:
        n = len(g)
        fed, wanted = text[prompt + step :][:n], text[prompt + step + 1 :][:n]
        return StepRows(self._slots[:n], fed, previous, self.drafter.read(g), wanted)


def text_contexts(
    continuation: Continuation, sizes: Collection[int], device: torch.device
) -> dict[int, Tensor]:
    """What heads that read the text are given at every root: by C, (n - 1, C) as in ``DraftState.context``.

    That is the prompt and all committed tokens, the root among them, as the proposer gives them.
    """
    found = {}
    for size in sizes:
        met, rows = ContextTokens(1, size, "cpu"), []
        met.begin(0, continuation.prompt)
        for root in continuation.tokens[:-1]:
            met.add(0, [root])
            rows.append(met.tensor[0].clone())
        found[size] = torch.stack(rows).to(device)
    return found


@dataclass(frozen=True)
class CycleBatch:
    """All ``cycles`` of some continuations: their rows by draft step, numbered through the continuations, and by C the
    (cycles, C) contexts.
    """

    cycles: int
    steps: Sequence[StepRows]
    contexts: Mapping[int, Tensor]

    @classmethod
    def join(cls, parts: Sequence[CycleBatch]) -> CycleBatch:
        """One after the other."""
        begins, total = [], 0
        for one in parts:
            begins.append(total)
            total += one.cycles
        steps = []
        for k in range(max(len(one.steps) for one in parts)):
            there = [(begin, one.steps[k]) for begin, one in zip(begins, parts) if k < len(one.steps)]
            rows = torch.cat([step.rows + begin for begin, step in there])
            others = ("tokens", "previous", "hidden", "wanted")
            joined = (torch.cat([getattr(step, name) for _, step in there]) for name in others)
            steps.append(StepRows(rows, *joined))
        sizes = parts[0].contexts
        return cls(total, steps, {size: torch.cat([one.contexts[size] for one in parts]) for size in sizes})
