"""The hybrid head: a dense hot core and a dynamic tail, from a ranker or from the request's text."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .head_types import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .heads_context import check_context, default_context
from .heads_core import ContextTail, CoreAndTail, RankerTail, Tail, ranked_ids
from .heads_exact import refuse_options
from .heads_low_rank import as_scorer, check_shortlist, new_scorer
from .low_rank import LowRankScorer

DEFAULT_TAIL = 512


class HybridHead(nn.Module):
    """A hot core that needs no gather and no scorer, and a small tail for what it lacks; our own head.

    Args:
        base: the exact head.
        ranked: target ids of the hot core, in rank order; those without a head row are dropped.
        tail: what is scored beside it.
        ops: see ``HeadOptions.ops``.
    """

    KIND = "hybrid"
    by_step, static_shapes = False, True

    def __init__(self, base: HeadBase, ranked: Sequence[int], tail: Tail, ops: bool | None = None) -> None:
        super().__init__()
        self._parts = CoreAndTail(base, ranked, tail, ops)
        self.size = len(base.target_ids)
        self.core_size, self.context_size = self._parts.core.size, tail.context_size
        self.tail_size = tail.size if isinstance(tail, RankerTail) else None

    def scored(self, step: int) -> int:
        return min(self.core_size + self.context_size + (self.tail_size or 0), self.size)

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> LowRankScorer | None:
        """A ranker's scorer; without a rank, nothing: the tail is the text then."""
        return None if sizes.rank is None else new_scorer(sizes)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        vocab_size = len(base.embedding)
        if module is None:
            refuse_options(cls.KIND, options, ("ranked", "context"))
            ranked = ranked_ids(cls.KIND, options.ranked)
            size = default_context(len(ranked), vocab_size) if options.context is None else options.context
            check_context(size, vocab_size)
            return cls(base, ranked, ContextTail(size), options.ops)
        refuse_options(cls.KIND, options, ("ranked", "shortlist", "rows", "fp8"))
        check_shortlist(options.shortlist, vocab_size)
        ranked, size = ranked_ids(cls.KIND, options.ranked), options.shortlist or DEFAULT_TAIL
        tail = RankerTail(base, as_scorer(module), size, options.rows == "shared", bool(options.fp8))
        return cls(base, ranked, tail, options.ops)

    @property
    def target_ids(self) -> Tensor:
        return self._parts.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._parts.topk(hidden, k, state)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._parts.scores(hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self._parts.log_probs(hidden, state)
