"""Heads with a hot core of rows plus a dynamic tail: the context head (after NanoSpec) and the hybrid head.

The core is one dense product over a slab of rows; the tail gathers a few rows per group (a request, or a row)
with static shapes. A tail only has head rows outside the core, so no token is scored twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import MismatchError, UsageError
from ...ops.draft_topk import draft_topk
from ...ops.few_rows import linear
from ...ops.indexed_logits import indexed_logits
from ...ops.ordering import top_set
from . import on_ops as head_ops
from .exact import ShortlistHead, masked, refuse_options, requests_of
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .low_rank import as_scorer, check_shortlist, new_scorer, scorer_rows
from .on_ops import of_rows
from .scorer import LowRankScorer, Selector

MOST_TOKENS = 2999  # NanoSpec scores fewer than 3,000 in total
LEAST_CONTEXT = 256
DEFAULT_TAIL = 512  # tail size of a hybrid head


class HotCore(nn.Module):
    """Head rows that are always scored.

    Args:
        rows: (C,) int64 head rows, ascending.

    Attributes:
        weight: (C, H) contiguous copy of the rows.
        outside: (R - C,) int32 the other head rows, ascending.
        inside: bool (R,), whether each head row is in the core.
        others: (V + 1,) int32 head row of each id outside the core, else -1; the last is for invalid ids.
    """

    weight: Tensor
    rows: Tensor
    outside: Tensor
    inside: Tensor
    others: Tensor

    def __init__(self, base: HeadBase, rows: Tensor) -> None:
        super().__init__()
        self.size = len(rows)
        device = base.target_ids.device
        inside = torch.zeros(len(base.target_ids), dtype=torch.bool, device=device)
        inside[rows] = True
        known = max(len(base.embedding), int(base.target_ids[-1]) + 1)
        others = torch.full((known + 1,), -1, dtype=torch.int32, device=device)
        others[base.target_ids] = torch.arange(len(base.target_ids), dtype=torch.int32, device=device)
        others[base.target_ids[rows]] = -1
        parts = {"weight": base.weight.detach()[rows], "rows": rows.int(), "inside": inside, "others": others}
        parts["outside"] = (~inside).nonzero()[:, 0].int()
        for name, tensor in parts.items():
            self.register_buffer(name, tensor, persistent=False)


class ContextTail:
    """Tail with the tokens of each request's text.

    A short text may have fewer than k tokens (``fills`` is false), so the core must provide them.

    ``rows`` returns (G, T) int head rows outside the core, each once, -1 for padding. Group g has the N / G
    hidden rows (N, H) from g * N / G on. With ``alone``, rows share nothing.
    """

    fills = False

    def __init__(self, size: int) -> None:
        self.context_size = size

    def rows(
        self, core: HotCore, hidden: Tensor, k: int, state: DraftState | None, alone: bool = False
    ) -> Tensor:
        if state is None or state.context is None:
            raise UsageError(
                "this draft head reads the tokens of the request's text, and this way of drafting does not tell them",
                expected="a proposer that passes the text's tokens to the head",
            )
        # Padding (-1) and invalid ids map to the last entry.
        return core.others[state.context.clamp(max=len(core.others) - 1)]  # (B, C)


class RankerTail(nn.Module):
    """Tail with the best tokens outside the core according to a low-rank scorer.

    On the ops, per-row tails are selected from a copy of the scorer's rows outside the core, (R - C) * d'
    additional weights. A shared tail is selected with plain operations, because it needs every row's
    normaliser including the core.

    Args:
        size: number of tokens.
        shared: the rows of a request share the tokens most likely in any of them; else each row has its own.
        fp8: see ``HeadOptions.fp8``.
    """

    fills = True
    context_size = 0

    def __init__(
        self, base: HeadBase, scorer: LowRankScorer, size: int, shared: bool, fp8: bool = False
    ) -> None:
        super().__init__()
        self.scorer, self.size, self.shared = scorer, size, shared
        self._fp8 = fp8
        self._all = Selector(scorer_rows(base, scorer), fp8=fp8, ops=False)
        self._outside: Selector | None = None

    def over(self, core: HotCore, ops: bool) -> None:
        if ops and not self.shared:
            rows = self._all.original[core.outside]
            self._outside = Selector(rows, fp8=self._fp8, ops=True)

    def rows(
        self, core: HotCore, hidden: Tensor, k: int, state: DraftState | None, alone: bool = False
    ) -> Tensor:
        projected = self.scorer.project(hidden)
        count = min(max(self.size, k - core.size), len(core.outside))
        if self._outside is not None and len(hidden) <= head_ops.MOST_ROWS:
            return core.outside[self._outside.select(projected, count)]  # (N, T)
        scores = self._all.scores(projected)  # (N, R)
        if self.shared and not alone:
            scores = scores.log_softmax(-1)  # makes rows comparable
            scores = scores.view(requests_of(state), -1, scores.shape[-1]).amax(1)  # (B, R)
        return top_set(scores.masked_fill(core.inside, float("-inf")), count)


class CoreAndTail(ShortlistHead):
    """A draft head that scores a core and a tail; see ``DraftHead``.

    Args:
        ranked: target ids of the core, in rank order; ids without a head row are dropped.
        ops: see ``HeadOptions.ops``.

    Raises:
        MismatchError: the exact head has no row for any of these ids.
    """

    weight: Tensor
    target_ids: Tensor

    def __init__(
        self, base: HeadBase, ranked: Sequence[int], tail: ContextTail | RankerTail, ops: bool | None = None
    ) -> None:
        super().__init__()
        self.transform = base.transform
        self.register_buffer("weight", base.weight.detach(), persistent=False)
        self.register_buffer("target_ids", base.target_ids, persistent=False)
        self.on_ops = head_ops.chosen(base.weight, ops)
        self.core, self.tail = HotCore(base, rows_of(base, ranked)[0].sort().values), tail
        if isinstance(tail, RankerTail):
            tail.over(self.core, self.on_ops)
        self.size, self.core_size = len(base.target_ids), self.core.size
        self.context_size = tail.context_size
        self.tail_size = tail.size if isinstance(tail, RankerTail) else None

    def scored(self, step: int) -> int:
        return min(self.core_size + self.context_size + (self.tail_size or 0), self.size)

    def _topk_on_ops(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        spare, tail = self._spare_and_tail(hidden, k, state)
        parts = [linear(hidden, self.core.weight).float()]
        rows = [self.core.rows]
        if len(spare):
            parts.append(linear(hidden, self.weight[spare]).float())
            rows.append(spare)
        if len(tail) == len(hidden) > 1:
            parts.append(indexed_logits(hidden, self.weight, tail))
            columns = torch.cat([*(part.expand(len(tail), -1) for part in rows), tail], -1)  # (N, C)
        else:
            logits, union = head_ops.shared_logits(hidden, self.weight, tail, len(tail), distinct=True)
            parts.append(logits)
            columns = torch.cat([*rows, union])  # (C,)
        return draft_topk(self.transform(torch.cat(parts, -1)), k, ids=columns, target_ids=self.target_ids)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, ids = self._scored(hidden, k, state)
        ids, order = ids.sort(dim=-1, stable=True)
        return logits.gather(-1, order.expand(len(logits), -1)), ids

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        tail = self.tail.rows(self.core, hidden, 1, state, alone=True)  # (G, T)
        size = len(self.core.inside)
        inside = F.pad(self.core.inside, (0, 1)).repeat(len(tail), 1)  # the last column is for padding
        inside.scatter_(-1, torch.where(tail < 0, size, tail).long(), True)
        logits = self.transform(linear(hidden, self.weight).float())
        return masked(logits, of_rows(inside[:, :size], len(logits)))

    def _scored(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        spare, tail = self._spare_and_tail(hidden, k, state)
        places = tail.clamp(min=0)
        grouped = hidden.reshape(len(tail), -1, hidden.shape[-1])  # (G, N / G, H)
        beside = torch.bmm(grouped, self.weight[places].transpose(1, 2)).float()
        beside = beside.masked_fill((tail < 0)[:, None], float("-inf")).flatten(0, 1)
        always = [linear(hidden, self.core.weight).float()]
        if len(spare):
            always.append(linear(hidden, self.weight[spare]).float())
        logits = self.transform(torch.cat([*always, beside], -1))
        rows = torch.cat([self.core.rows, spare]).expand(len(tail), -1)
        ids = self.target_ids[torch.cat([rows, places], -1)]  # (G, C)
        return logits, ids[0] if len(tail) == 1 else of_rows(ids, len(logits))

    def _spare_and_tail(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        """Return the spare head rows (n,) shared by all hidden rows, and the tail (G, T) without them.

        A text may be too short for k tokens. If the core is also too small, the lowest other ids are added.
        """
        tail = self.tail.rows(self.core, hidden, k, state)
        spare = self.core.outside[: 0 if self.tail.fills else max(0, k - self.core.size)]
        if len(spare):
            tail = tail.masked_fill(
                tail <= spare[-1], -1
            )  # all rows outside the core up to the last spare row are spare
        return spare, tail


def rows_of(base: HeadBase, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Find the head rows of target ids.

    Returns:
        the rows (n,) int64 of the ids that have one, in order, and bool (len(ids),) whether each id has one.

    Raises:
        MismatchError: no id has a row.
    """
    wanted = torch.tensor(ids, dtype=torch.int64, device=base.target_ids.device)
    places = torch.searchsorted(base.target_ids, wanted).clamp(max=len(base.target_ids) - 1)
    known = base.target_ids[places] == wanted
    if not bool(known.any()):
        raise MismatchError(
            "the exact head scores no token of this draft vocabulary",
            got=f"{len(ids):,} ids, none with a row",
            expected="ids with a row in the head",
        )
    return places[known], known


def ranked_ids(kind: str, ranked: Sequence[int] | None) -> Sequence[int]:
    """Check that a vocabulary was given for a kind of head, and return it.

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


class HybridHead(CoreAndTail):
    """A hot core without gather or scorer, plus a small tail for the tokens it lacks; our own design."""

    KIND = "hybrid"

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> LowRankScorer:
        return new_scorer(sizes)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("ranked", "shortlist", "rows", "fp8"))
        check_shortlist(options.shortlist, len(base.embedding))
        ranked, size = ranked_ids(cls.KIND, options.ranked), options.shortlist or DEFAULT_TAIL
        tail = RankerTail(base, as_scorer(module), size, options.rows == "shared", bool(options.fp8))
        return cls(base, ranked, tail, options.ops)


class ContextHead(CoreAndTail):
    """A hot core and the text's tokens: a text is likely to reuse its own (NanoSpec; docs/methods.md, Draft heads).

    Args:
        ranked: target ids of the hot core, in rank order; ids without a head row are dropped.
        context: number of tokens of the text, the most recent ones; None for ``MOST_TOKENS`` minus the core.
        ops: see ``HeadOptions.ops``.

    Raises:
        UsageError: ``context`` is outside 1 to V.
    """

    KIND = "context"

    def __init__(
        self, base: HeadBase, ranked: Sequence[int], context: int | None = None, ops: bool | None = None
    ) -> None:
        vocab_size = len(base.embedding)
        if context is None:
            context = min(max(MOST_TOKENS - len(ranked), LEAST_CONTEXT), vocab_size)
        if not 1 <= context <= vocab_size:
            raise UsageError(
                "the context of a draft head does not suit the vocabulary",
                got=f"{context:,} tokens of the text",
                expected=f"1 to {vocab_size:,}",
            )
        super().__init__(base, ranked, ContextTail(context), ops)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("ranked", "context"))
        return cls(base, ranked_ids(cls.KIND, options.ranked), options.context, options.ops)
