"""Heads over a low-rank scorer: SpecVocab's ranker and SlimSpec's low-rank head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.errors import MismatchError, UsageError
from ...ops.few_rows import linear
from ...ops.indexed_logits import indexed_logits
from ...ops.ordering import top_set
from . import on_ops as head_ops
from .exact import HeadModule, ShortlistHead, StaticHead, check_width, masked, refuse_options, requests_of
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .on_ops import of_rows
from .scorer import LowRankScorer, Selector

DEFAULT_SHORTLIST = 2048


class RankerHead(ShortlistHead):
    """SpecVocab's draft head: a low-rank scorer selects candidates, and the exact head scores them.

    Args:
        base: the exact head; if it has fewer than V rows, candidates are limited to its rows.
        shortlist: candidates per row, at most R.
        rows: ``own`` for separate candidates per row, ``shared`` for one union per request and step.
        ops: see ``HeadOptions``.
    """

    KIND = "ranker"

    weight: Tensor
    target_ids: Tensor

    def __init__(
        self,
        base: HeadBase,
        scorer: LowRankScorer,
        shortlist: int = DEFAULT_SHORTLIST,
        rows: str = "own",
        *,
        ops: bool | None = None,
    ) -> None:
        super().__init__()
        if shortlist < 1:
            raise UsageError(
                "a ranker needs candidates", got=f"a shortlist of {shortlist}", expected="1 or more"
            )
        self.scorer, self.transform = scorer, base.transform
        self.register_buffer("weight", base.weight.detach(), persistent=False)
        self.register_buffer("target_ids", base.target_ids, persistent=False)
        self.size = int(base.weight.shape[0])
        self.shortlist = min(shortlist, self.size)
        self.shared = rows == "shared"
        self.on_ops = self.static_shapes = head_ops.chosen(base.weight, ops)
        self._selector = Selector(scorer_rows(base, scorer), ops=self.on_ops)

    def scored(self, step: int) -> int:
        return self.shortlist

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> LowRankScorer:
        return LowRankScorer(sizes.hidden_size, sizes.vocab_size, sizes.rank or 0)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("shortlist", "rows"))
        assert isinstance(module, LowRankScorer)
        shortlist = options.shortlist or DEFAULT_SHORTLIST
        if shortlist != DEFAULT_SHORTLIST:  # configurations have the default although nobody asked for it
            check_shortlist(shortlist, len(base.embedding))
        return cls(base, module, shortlist, options.rows or "own", ops=options.ops)

    def candidates(self, hidden: Tensor, k: int = 1) -> Tensor:
        """Return the head rows of each row's candidates, (N, max(shortlist, k)) int64, ascending."""
        return top_set(self._selector.scores(self.scorer.project(hidden)), max(self.shortlist, k))

    def logits_on_ops(
        self, hidden: Tensor, k: int, state: DraftState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = max(self.shortlist, k)
        rows = self._selector.select(self.scorer.project(hidden), count)  # (N, n)
        if self.shared and len(hidden) > 1:
            logits, rows = head_ops.shared_logits(hidden, self.weight, rows, requests_of(state))
        else:
            logits = indexed_logits(hidden, self.weight, rows)
        return self.transform(logits), rows, self.target_ids

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        own = self.candidates(hidden, k)
        union = own[0] if len(own) == 1 else own.unique()  # one product for all requests
        logits = self.transform(linear(hidden, self.weight[union]).float())  # (N, C)
        if len(own) == 1:
            return logits, self.target_ids[union]
        places = torch.searchsorted(union, own)  # (N, k)
        if not self.shared:
            return logits.gather(-1, places), self.target_ids[own]
        requests = requests_of(state)
        if requests > 1:
            inside = torch.zeros(requests, len(union), dtype=torch.bool, device=logits.device)
            inside.scatter_(-1, places.view(requests, -1), True)
            logits = logits.masked_fill(~of_rows(inside, len(logits)), float("-inf"))
        return logits, self.target_ids[union]

    _scored = scores

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        logits = self.transform(linear(hidden, self.weight).float())
        mask = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, self.candidates(hidden), True)
        return masked(logits, mask)


class LowRankHead(HeadModule):
    """SlimSpec's draft head: the scorer's softmax is the draft distribution over the ids of ``base``."""

    KIND = "low-rank"

    def __init__(self, base: HeadBase, scorer: LowRankScorer, ops: bool | None = None) -> None:
        super().__init__()
        self.scorer = scorer
        self._inner = StaticHead(scorer_rows(base, scorer), base.target_ids, ops)
        self.size = self._inner.size

    @property
    def target_ids(self) -> Tensor:
        return self._inner.target_ids

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> LowRankScorer:
        return LowRankScorer(sizes.hidden_size, sizes.vocab_size, sizes.rank or 0)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ())
        assert isinstance(module, LowRankScorer)
        return cls(base, module, options.ops)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._inner.topk(self.scorer.project(hidden), k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._inner.scores(self.scorer.project(hidden), k)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self._inner.log_probs(self.scorer.project(hidden))


def check_shortlist(shortlist: int | None, vocab_size: int, *, source: object = None) -> None:
    """Check that a shortlist is not larger than the vocabulary; None is accepted.

    Raises:
        UsageError: ``shortlist`` is above ``vocab_size``.
    """
    if shortlist is not None and shortlist > vocab_size:
        raise UsageError(
            "the ranker's shortlist is larger than the vocabulary",
            got=f"a shortlist of {shortlist:,}",
            expected=f"at most {vocab_size:,}, and fewer to save anything",
            source=source,
        )


def scorer_rows(base: HeadBase, scorer: LowRankScorer) -> Tensor:
    """Return the rows (R, d') of W_vocab for the base's tokens.

    Raises:
        MismatchError: the hidden sizes differ, or the scorer does not score every token of the base.
    """
    check_width("low-rank scorer", scorer.down.in_features, base)
    weight, ids = scorer.head_weight, base.target_ids
    if len(weight) == len(ids):
        return weight
    if int(ids[-1]) >= len(weight):
        raise MismatchError(
            "the draft head does not score every token of the drafter's head",
            got=f"{len(weight):,} scores for ids up to {int(ids[-1]):,}",
            expected="a draft head that was trained for this target",
        )
    return weight[ids]
