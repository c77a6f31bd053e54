"""A hot core of head rows with a tail that changes: what context and hybrid heads are made of.

The core is one dense product over a slab of rows; the tail gathers a few rows a group (a request, or a row),
in static shapes. A tail names head rows that the core does not have, so no token is scored twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import MismatchError, UsageError
from .head_types import DraftState, HeadBase
from .heads_exact import answer, masked, of_rows, requests_of
from .heads_low_rank import scorer_rows
from .low_rank import LowRankScorer
from .topk import top_set


class HotCore:
    """Head rows that are always scored.

    Args:
        base: the exact head.
        rows: (C,) int64 ascending.

    Attributes:
        weight: (C, H) a slab of their own.
        ids: (C,) int64 ascending.
        inside: bool (R,), by head row.
        others: (V + 1,) int64 the head row of each id that is not inside, -1 for all others; the last place
            is -1 and stands for ids that are none.
    """

    def __init__(self, base: HeadBase, rows: Tensor) -> None:
        self.size = len(rows)
        self.weight, self.ids = base.weight[rows], base.target_ids[rows]
        device = base.target_ids.device
        self.inside = torch.zeros(len(base.target_ids), dtype=torch.bool, device=device)
        self.inside[rows] = True
        known = max(len(base.embedding), int(base.target_ids[-1]) + 1)
        self.others = torch.full((known + 1,), -1, dtype=torch.int64, device=device)
        self.others[base.target_ids] = torch.arange(len(base.target_ids), device=device)
        self.others[self.ids] = -1


class Tail(Protocol):
    """Head rows beside the core.

    Attributes:
        context_size: see ``DraftHead.context_size``.
        fills: it gives as many tokens as are asked for; else the core must.
    """

    context_size: int
    fills: bool

    def rows(
        self, core: HotCore, hidden: Tensor, k: int, state: DraftState | None, alone: bool = False
    ) -> Tensor:
        """(G, T) int64 head rows outside the core, once each, -1 for padding.

        Group g has the N / G hidden rows (N, H) from g * N / G on. With ``fills`` core and tail have at least k
        tokens. ``alone``: rows share only what belongs to their request, nothing of each other's.
        """
        ...


class ContextTail:
    """The tokens of each request's own text."""

    fills = False

    def __init__(self, size: int) -> None:
        self.context_size = size

    def rows(
        self, core: HotCore, hidden: Tensor, k: int, state: DraftState | None, alone: bool = False
    ) -> Tensor:
        if state is None or state.context is None:
            raise UsageError(
                "this draft head reads the tokens of the request's text, and this way of drafting does not tell them",
                expected="a proposer that tells a head the text's tokens",
            )
        # Padding, -1, and ids that are none fall on the last place.
        return core.others[state.context.clamp(max=len(core.others) - 1)]  # (B, C)


class RankerTail:
    """The best tokens outside the core by a low-rank scorer.

    Args:
        base: the exact head.
        scorer: the trained ranker.
        size: tokens.
        shared: the rows of a request share one tail, of the tokens that are likeliest in any of them; else each
            row has its own.
    """

    fills = True
    context_size = 0

    def __init__(self, base: HeadBase, scorer: LowRankScorer, size: int, shared: bool) -> None:
        self.scorer, self.size, self.shared = scorer, size, shared
        self._rows = scorer_rows(base, scorer)

    def rows(
        self, core: HotCore, hidden: Tensor, k: int, state: DraftState | None, alone: bool = False
    ) -> Tensor:
        scores = F.linear(self.scorer.project(hidden), self._rows).float()  # (N, R)
        if self.shared and not alone:
            scores = scores.log_softmax(-1)  # so that rows can be compared
            scores = scores.view(requests_of(state), -1, scores.shape[-1]).amax(1)  # (B, R)
        scores = scores.masked_fill(core.inside, float("-inf"))
        return top_set(scores, min(max(self.size, k - core.size), len(core.inside) - core.size))


class CoreAndTail:
    """Scores over a core and a tail.

    Args:
        base: the exact head.
        ranked: target ids of the core, in rank order; those without a head row are dropped.
        tail: what is scored beside it.

    Raises:
        MismatchError: the exact head has a row for none of them.
    """

    def __init__(self, base: HeadBase, ranked: Sequence[int], tail: Tail) -> None:
        self.base, self.tail = base, tail
        self._cores = {0: HotCore(base, rows_of(base, ranked)[0].sort().values)}

    @property
    def core(self) -> HotCore:
        return self._cores[0]

    def topk(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        return answer(*self._scored(hidden, k, state), k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        """Logits (N, C) and their ids, ascending."""
        logits, ids = self._scored(hidden, k, state)
        ids, order = ids.sort(dim=-1, stable=True)
        return logits.gather(-1, order.expand(len(logits), -1)), ids

    def log_probs(self, hidden: Tensor, state: DraftState | None) -> Tensor:
        """Dense log-probabilities (N, R)."""
        tail = self.tail.rows(self.core, hidden, 1, state, alone=True)  # (G, T)
        size = len(self.core.inside)
        inside = F.pad(self.core.inside, (0, 1)).repeat(len(tail), 1)  # the last column takes the padding
        inside.scatter_(-1, torch.where(tail < 0, size, tail), True)
        logits = F.linear(hidden, self.base.weight).float()
        return masked(logits, of_rows(inside[:, :size], len(logits)))

    def _scored(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        """Logits (N, C) fp32 and their ids, (C,) or (N, C), the core first, then the tail."""
        core = self.core if self.tail.fills or k <= self.core.size else self._widened(k)
        tail = self.tail.rows(core, hidden, k, state)  # (G, T)
        places = tail.clamp(min=0)
        grouped = hidden.reshape(len(tail), -1, hidden.shape[-1])  # (G, N / G, H)
        beside = torch.bmm(grouped, self.base.weight[places].transpose(1, 2)).float()
        beside = beside.masked_fill((tail < 0)[:, None], float("-inf")).flatten(0, 1)
        logits = torch.cat([F.linear(hidden, core.weight).float(), beside], -1)
        ids = torch.cat([core.ids.expand(len(tail), -1), self.base.target_ids[places]], -1)  # (G, C)
        return logits, ids[0] if len(tail) == 1 else of_rows(ids, len(logits))

    def _widened(self, k: int) -> HotCore:
        """The core with the lowest ids outside it, k in all: a text may be too short for k tokens."""
        if k not in self._cores:
            rest = (~self.core.inside).nonzero()[: k - self.core.size, 0]
            rows = torch.cat([self.core.inside.nonzero()[:, 0], rest]).sort().values
            self._cores[k] = HotCore(self.base, rows)
        return self._cores[k]


def rows_of(base: HeadBase, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Head rows of target ids.

    Returns:
        the rows (n,) int64 of those ids that have one, in their order, and bool (len(ids),) which they are.

    Raises:
        MismatchError: none of them has.
    """
    wanted = torch.tensor(ids, dtype=torch.int64, device=base.target_ids.device)
    places = torch.searchsorted(base.target_ids, wanted).clamp(max=len(base.target_ids) - 1)
    known = base.target_ids[places] == wanted
    if not bool(known.any()):
        raise MismatchError(
            "the exact head scores no token of this draft vocabulary",
            got=f"{len(ids):,} ids, none of them with a row",
            expected="some ids of the head's own",
        )
    return places[known], known


def ranked_ids(kind: str, ranked: Sequence[int] | None) -> Sequence[int]:
    """The vocabulary that a kind is made over.

    Raises:
        UsageError: none was given.
    """
    if not ranked:
        raise UsageError(
            f"a {kind} head is made over a draft vocabulary",
            got="none",
            expected="token ids in rank order",
            remedy="give a subset artefact with --vocab",
        )
    return ranked
