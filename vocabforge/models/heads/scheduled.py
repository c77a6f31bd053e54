"""The scheduled head (PA-FR), which scores the first B(t) tokens of a ranked vocabulary at draft step t."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...ops.draft_topk import draft_topk
from ...ops.few_rows import linear
from . import on_ops as head_ops
from .context import ranked_ids, rows_of
from .exact import HeadModule, answer, refuse_options
from .interface import DraftHead, DraftState, HeadBase, HeadOptions


class ScheduledHead(HeadModule):
    """A static head whose vocabulary shrinks with the draft step, as deep drafts are rarely accepted (PA-FR).

    The rows are in rank order, so that every step uses a slice of the same slab.

    Args:
        ranked: target ids in rank order; ids without a head row are dropped.
        schedule: B(0), B(1), ...: step t uses the first B(t) of ``ranked``, but at least one; the last value
            applies to deeper steps. If empty, every step uses all of them.
        ops: see ``HeadOptions.ops``.
    """

    KIND = "scheduled"
    by_step = True

    target_ids: Tensor
    _slab: Tensor
    _ids: Tensor

    def __init__(
        self, base: HeadBase, ranked: Sequence[int], schedule: Sequence[int] = (), ops: bool | None = None
    ) -> None:
        super().__init__()
        self.transform = base.transform
        self.on_ops = head_ops.chosen(base.weight, ops)
        rows, known = rows_of(base, ranked)
        self.size = len(rows)
        before = known.cumsum(0).tolist()
        self.sizes = tuple(max(1, before[min(n, len(before)) - 1]) for n in schedule) or (self.size,)
        self.register_buffer("_slab", base.weight.detach()[rows], persistent=False)  # in rank order
        self.register_buffer("_ids", base.target_ids[rows], persistent=False)
        self._orders: dict[int, Tensor] = {}
        self.register_buffer("target_ids", self._ids[self._order(self.size)], persistent=False)

    def scored(self, step: int) -> int:
        return self.sizes[min(step, len(self.sizes) - 1)]

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("ranked", "schedule"))
        return cls(base, ranked_ids(cls.KIND, options.ranked), options.schedule or (), options.ops)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        count = self._count(state, k)
        if self.on_ops and k <= head_ops.MOST_K:
            logits = self.transform(linear(hidden, self._slab[:count]))
            return draft_topk(logits, k, target_ids=self._ids[:count])
        return answer(self._logits(hidden, count), self._ids[:count], k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        count = self._count(state, k)
        order = self._order(count)
        return self._logits(hidden, count)[:, order], self._ids[order]

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        logits = self._logits(hidden, self.size)
        logits[:, self._count(state, 1) :] = float("-inf")
        return logits[:, self._order(self.size)].log_softmax(-1)

    def _logits(self, hidden: Tensor, count: int) -> Tensor:
        """Compute logits (N, count) fp32 of the first tokens, in rank order."""
        return self.transform(linear(hidden, self._slab[:count]).float())

    def _count(self, state: DraftState | None, k: int) -> int:
        step = 0 if state is None else min(state.step, len(self.sizes) - 1)
        return max(self.sizes[step], k)

    def _order(self, count: int) -> Tensor:
        """Return the ranks of the first ``count`` tokens, sorted by id."""
        if count not in self._orders:
            with torch.inference_mode(False):  # cached for calls in both modes
                self._orders[count] = self._ids[:count].argsort()
        return self._orders[count]
