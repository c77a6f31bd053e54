"""Heads that use the tokens of the request's text: the context head (after NanoSpec) and the hybrid head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ...core.errors import UsageError
from .core import ContextTail, CoreAndTail, RankerTail, ranked_ids
from .exact import refuse_options
from .interface import DraftHead, HeadBase, HeadOptions, HeadSizes
from .low_rank import as_scorer, check_shortlist, new_scorer
from .scorer import LowRankScorer

MOST_TOKENS = 2999  # NanoSpec scores fewer than 3,000 in total
LEAST_CONTEXT = 256
DEFAULT_TAIL = 512  # tail size of a hybrid head


class HybridHead(CoreAndTail):
    """A hot core without gather or scorer, plus a small tail for the tokens it lacks; our own design."""

    KIND = "hybrid"

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> LowRankScorer | None:
        """Return a ranker's scorer; None without a rank, when the tail is the text."""
        return None if sizes.rank is None else new_scorer(sizes)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        if module is None:
            refuse_options(cls.KIND, options, ("ranked", "context"))
            ranked = ranked_ids(cls.KIND, options.ranked)
            return cls(base, ranked, text_tail(base, ranked, options.context), options.ops)
        refuse_options(cls.KIND, options, ("ranked", "shortlist", "rows", "fp8"))
        check_shortlist(options.shortlist, len(base.embedding))
        ranked, size = ranked_ids(cls.KIND, options.ranked), options.shortlist or DEFAULT_TAIL
        tail = RankerTail(base, as_scorer(module), size, options.rows == "shared", bool(options.fp8))
        return cls(base, ranked, tail, options.ops)


class ContextHead(CoreAndTail):
    """A hot core and the text's tokens: a text is likely to reuse its own (NanoSpec; docs/methods.md, Draft heads).

    Args:
        ranked: target ids of the hot core, in rank order; ids without a head row are dropped.
        context: number of tokens of the text, the most recent ones.
        ops: see ``HeadOptions.ops``.
    """

    KIND = "context"

    def __init__(
        self, base: HeadBase, ranked: Sequence[int], context: int | None = None, ops: bool | None = None
    ) -> None:
        super().__init__(base, ranked, text_tail(base, ranked, context), ops)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("ranked", "context"))
        return cls(base, ranked_ids(cls.KIND, options.ranked), options.context, options.ops)


def text_tail(base: HeadBase, ranked: Sequence[int], size: int | None) -> ContextTail:
    """Create a tail of ``size`` tokens of the request's text; None for ``MOST_TOKENS`` minus the core.

    Raises:
        UsageError: ``size`` is outside 1 to V.
    """
    vocab_size = len(base.embedding)
    if size is None:
        size = min(max(MOST_TOKENS - len(ranked), LEAST_CONTEXT), vocab_size)
    if not 1 <= size <= vocab_size:
        raise UsageError(
            "the context of a draft head does not suit the vocabulary",
            got=f"{size:,} tokens of the text",
            expected=f"1 to {vocab_size:,}",
        )
    return ContextTail(size)
