"""Which tokens each draft head scores on a row: from that, every head's rank of one token from the same logits.

A head that scores a subset S of its drafter's head with exact logits ranks a token y of S by how many of S stand above
it. What stands above y among all head rows is found once a row (``Block.pairs``); each head only says which of these it
scores. A shortlist of fewer than ``width`` tokens is widened to ``width``, as for a node of so many children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import MismatchError, UsageError
from ...models.heads.core import ContextTail, CoreAndTail, HotCore, RankerTail
from ...models.heads.registry import (
    DraftHead,
    FullHead,
    HybridHead,
    LowRankHead,
    RankerHead,
    RouterHead,
    ScheduledHead,
    StaticHead,
)
from .block import Block, Parts, Placed, part_of
from .lists import Shortlist, above


class Support(Protocol):
    """A head's answers."""

    def place(self, block: Block) -> Placed:
        """Where the head places the wanted token of each of the block's rows (B,), and how many tokens it scores."""
        ...


def support_of(head: DraftHead, parts: Parts) -> Support:
    """A head's answers, from its own tensors.

    Raises:
        UsageError: a kind that cannot be replayed, or a head whose rows share a shortlist.
        MismatchError: the head does not score with rows of its drafter's head.
    """
    kind = getattr(head, "KIND", None)
    if kind not in SUPPORTS:
        raise UsageError(
            "this kind of draft head cannot be replayed",
            got=kind or type(head).__name__,
            expected=", ".join(SUPPORTS),
            remedy="say in study/replay/supports.py which tokens it scores",
        )
    return SUPPORTS[kind](head, parts)


class Listed:
    """The same tokens on every row: a full or a static head."""

    def __init__(self, head: FullHead | StaticHead, parts: Parts) -> None:
        self._table = parts.table(head.target_ids)
        _check_rows(head.weight, parts.base.weight, None if self._table.all() else self._table)
        self._size = head.size

    def place(self, block: Block) -> Placed:
        member = self._table[block.pairs.columns]
        return block.placed(member, self._table[block.places], block.constant(self._size))


class Scheduled:
    """A ranked vocabulary that shrinks with the draft step."""

    def __init__(self, head: ScheduledHead, parts: Parts) -> None:
        self._head, self._parts = head, parts
        self._tables: dict[int, tuple[Tensor, int]] = {}

    def place(self, block: Block) -> Placed:
        table, size = self._table(block)
        return block.placed(table[block.pairs.columns], table[block.places], block.constant(size))

    def _table(self, block: Block) -> tuple[Tensor, int]:
        """bool (R,) of the block's step, and how many."""
        step = block.state.step
        if step not in self._tables:
            width = min(self._parts.width, self._head.size)
            ids = self._head.scores(block.hidden[:1], width, block.state)[1]
            self._tables[step] = self._parts.table(ids), len(ids)
        return self._tables[step]


class Routed:
    """The tokens of the clusters that a router opens; head rows in no cluster are in none."""

    def __init__(self, head: RouterHead, parts: Parts) -> None:
        _refuse_shared(head.shared)
        clusters = head.router.clusters
        parts.table(head.target_ids)
        self._head, self._width = head, min(parts.width, head.size)
        self._cluster = F.pad(head.cluster, (0, len(parts.base.target_ids) - head.size), value=clusters)
        self._sizes = F.pad(head.cluster.bincount(minlength=clusters), (0, 1)).float()

    def place(self, block: Block) -> Placed:
        state = block.prepared(self._head.router, self._head.prepare)
        opened = F.pad(self._head.clusters(state, self._width), (0, 1))  # (B, M + 1), the last is closed
        pairs = block.pairs
        inside = opened.gather(-1, self._cluster[block.places][:, None])[:, 0]
        scored = torch.where(opened, self._sizes, 0.0).sum(-1)
        return block.placed(opened[pairs.rows, self._cluster[pairs.columns]], inside, scored)


class Ranked:
    """The best of a low-rank scorer."""

    def __init__(self, head: RankerHead, parts: Parts) -> None:
        _refuse_shared(head.shared)
        _check_rows(head.weight, parts.base.weight)
        self._size = min(max(head.shortlist, parts.width), head.size)
        self._scorer = parts.scorer(head, head.scorer)
        self._number = self._scorer.want(Shortlist(self._size))

    def place(self, block: Block) -> Placed:
        found = self._scorer.asked(block, self._number)
        return Placed(found.above, found.inside, block.constant(self._size))


class LowRank:
    """All tokens, by the head's own scores: none gets an exact logit."""

    def __init__(self, head: LowRankHead, parts: Parts) -> None:
        self._head, self._all = head, parts.table(head.target_ids)
        if not self._all.all():
            raise MismatchError(
                "the low-rank head does not score every token of its drafter's head",
                got=f"{int((~self._all).sum()):,} tokens without a score",
                expected="a score for each",
            )

    def place(self, block: Block) -> Placed:
        scores = self._head.scores(block.hidden, 1, block.state)[0]  # (B, R)
        return Placed(above(scores, block.wanted).count(), block.known, block.constant(0))


class TextBeside:
    """A hot core, and the tokens of the request's text."""

    def __init__(self, head: nn.Module, parts: Parts) -> None:
        whole = part_of(head, CoreAndTail)
        assert isinstance(whole.tail, ContextTail)
        _check_rows(whole.weight, parts.base.weight)
        self._core, self._tail, self._width = whole.core, whole.tail, parts.width
        self._always = whole.core.inside.clone()
        # A text may hold too few tokens for so many children: the lowest ids beside the core join it.
        self._always[whole.core.outside[: max(0, parts.width - whole.core.size)]] = True
        self._count = int(self._always.sum())

    def place(self, block: Block) -> Placed:
        state = replace(block.state, context=block.contexts[self._tail.context_size])
        rows = self._tail.rows(self._core, block.hidden, self._width, state).long()  # (B, C), -1 for padding
        fresh = (rows >= 0) & ~self._always[rows.clamp(min=0)]
        # Padding falls on a row of the core, which is there in any case.
        places = torch.where(fresh, rows, self._core.rows[0].long())
        met = self._always.repeat(len(rows), 1).scatter_(-1, places, True)  # (B, R)
        pairs = block.pairs
        inside = met.gather(-1, block.places[:, None])[:, 0]
        scored = (self._count + fresh.sum(-1)).float()
        return block.placed(met[pairs.rows, pairs.columns], inside, scored)


class RankerBeside:
    """A hot core, and the best of a low-rank scorer outside of it."""

    def __init__(self, head: nn.Module, parts: Parts) -> None:
        whole = part_of(head, CoreAndTail)
        tail, core = whole.tail, whole.core
        assert isinstance(tail, RankerTail)
        _refuse_shared(tail.shared)
        _check_rows(whole.weight, parts.base.weight)
        count = min(max(tail.size, parts.width - core.size), len(core.outside))
        self._core: HotCore = core
        self._size = core.size + count
        self._scorer = parts.scorer(head, tail.scorer)
        self._number = self._scorer.want(Shortlist(count, core.inside)) if count else None

    def place(self, block: Block) -> Placed:
        core = self._core.inside
        found = block.placed(core[block.pairs.columns], core[block.places], block.constant(self._size))
        if self._number is None:
            return found
        beside = self._scorer.asked(block, self._number)
        return Placed(found.rank + beside.above, found.inside | beside.inside, found.scored)


def _hybrid(head: HybridHead, parts: Parts) -> Support:
    return TextBeside(head, parts) if head.context_size else RankerBeside(head, parts)


# kind -> what makes a head's answers of it; a kind of models.heads.HEADS that is missing here cannot be replayed.
SUPPORTS: dict[str, Callable[[Any, Parts], Support]] = {
    "full": Listed,
    "static": Listed,
    "scheduled": Scheduled,
    "router": Routed,
    "ranker": Ranked,
    "low-rank": LowRank,
    "context": TextBeside,
    "hybrid": _hybrid,
}


def _check_rows(weight: Tensor, base: Tensor, table: Tensor | None = None) -> None:
    """Refuse a head whose rows are not its drafter's: its logits would be others.

    Raises:
        MismatchError: they are not.
    """
    own = base if table is None else base[table]
    if weight.data_ptr() != own.data_ptr() and not torch.equal(weight, own):
        raise MismatchError(
            "the draft head's rows are not those of its drafter's head",
            got=f"{tuple(weight.shape)} of other values",
            expected="a draft head that was built over this drafter",
        )


def _refuse_shared(shared: bool) -> None:
    """Which tokens such a head scores depends on a tree's other nodes.

    Raises:
        UsageError: the rows of a draft step share a shortlist.
    """
    if shared:
        raise UsageError(
            "a draft head whose rows share a shortlist cannot be replayed",
            got="rows shared",
            expected="rows own, which is the same for a chain",
        )
