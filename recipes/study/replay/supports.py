"""Which tokens each draft head scores on a row: from that, every head's rank of one token from the same logits.

A head that scores a subset S of its drafter's head with exact logits ranks a token y of S by how many of S are above
it. What is above y among all head rows is found once a row (``Block.pairs``); each head only selects which of these it
scores. A shortlist of fewer than ``width`` tokens is widened to ``width``, as for a node of so many children.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vocabforge.core.errors import UsageError
from vocabforge.models.heads.core import ContextTail, CoreAndTail, RankerTail
from vocabforge.models.heads.registry import (
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

# Where a head places the wanted token of each of a block's rows, and how many tokens it scores.
Support = Callable[[Block], Placed]


def support_of(head: DraftHead, parts: Parts) -> Support:
    """A head's answers, from its own tensors.

    Raises:
        UsageError: a kind that cannot be replayed, or a head whose rows share a shortlist.
        MismatchError: the head scores tokens that its drafter's head does not.
    """
    kind = getattr(head, "KIND", None)
    if kind not in SUPPORTS:
        raise UsageError(
            "this kind of draft head cannot be replayed",
            got=kind or type(head).__name__,
            expected=", ".join(SUPPORTS),
            remedy="say in recipes/study/replay/supports.py which tokens it scores",
        )
    owner = getattr(head, "tail", None) or head  # the dynamic part of a head with a core
    if getattr(owner, "shared", False):  # which tokens it scores depends on a tree's other nodes
        raise UsageError(
            "a draft head whose rows share a shortlist cannot be replayed",
            got="rows shared",
            expected="rows own, which is the same for a chain",
        )
    return SUPPORTS[kind](head, parts)


def _listed(head: FullHead | StaticHead, parts: Parts) -> Support:
    """Supports one set of tokens on every row."""
    table = parts.table(head.target_ids)
    return lambda block: block.placed(table[block.pairs.columns], table[block.places], head.size)


def _scheduled(head: ScheduledHead, parts: Parts) -> Support:
    """A ranked vocabulary that shrinks with the draft step."""
    tables: dict[int, torch.Tensor] = {}
    width = min(parts.width, head.size)

    def place(block: Block) -> Placed:
        step = block.state.step
        if step not in tables:
            tables[step] = parts.table(head.scores(block.hidden[:1], width, block.state)[1])
        table = tables[step]
        return block.placed(table[block.pairs.columns], table[block.places], int(table.sum()))

    return place


def _routed(head: RouterHead, parts: Parts) -> Support:
    """The tokens of the clusters that a router opens; head rows in no cluster are in none."""
    clusters, width = head.router.clusters, min(parts.width, head.size)
    cluster = F.pad(head.cluster, (0, len(parts.base.target_ids) - head.size), value=clusters)
    sizes = F.pad(head.cluster.bincount(minlength=clusters), (0, 1)).float()

    def place(block: Block) -> Placed:
        if id(head.router) not in block.shared:  # its ranking of the clusters
            block.shared[id(head.router)] = head.prepare(block.state)
        opened = head.clusters(block.shared[id(head.router)], width)
        opened = F.pad(opened, (0, 1))  # (B, M + 1), the last is closed
        pairs = block.pairs
        inside = opened.gather(-1, cluster[block.places][:, None])[:, 0]
        scored = torch.where(opened, sizes, 0.0).sum(-1)
        return block.placed(opened[pairs.rows, cluster[pairs.columns]], inside, scored)

    return place


def _ranked(head: RankerHead, parts: Parts) -> Support:
    """The best of a low-rank scorer."""
    size = min(max(head.shortlist, parts.width), head.size)
    ask = parts.shortlist(head, head.scorer, Shortlist(size))
    return lambda block: Placed(*ask(block), size)


def _low_rank(head: LowRankHead, parts: Parts) -> Support:
    """All tokens, by the head's own scores: none gets an exact logit."""

    def place(block: Block) -> Placed:
        pairs = above(head.scores(block.hidden, 1, block.state)[0], block.wanted)
        return Placed(pairs.rows.bincount(minlength=pairs.batch), block.known, 0)

    return place


def _text_beside(head: nn.Module, parts: Parts) -> Support:
    """A hot core, and the tokens of the request's text."""
    whole = part_of(head, CoreAndTail)
    core, tail = whole.core, whole.tail
    assert isinstance(tail, ContextTail)
    always = core.inside.clone()
    # A text may hold too few tokens for so many children: the lowest ids beside the core join it.
    always[core.outside[: max(0, parts.width - core.size)]] = True
    count = int(always.sum())

    def place(block: Block) -> Placed:
        state = replace(block.state, context=block.contexts[tail.context_size])
        rows = tail.rows(core, block.hidden, parts.width, state).long()  # (B, C), -1 for padding
        fresh = (rows >= 0) & ~always[rows.clamp(min=0)]
        # Padding falls on a row of the core, which is there in any case.
        places = torch.where(fresh, rows, core.rows[0].long())
        met = always.repeat(len(rows), 1).scatter_(-1, places, True)  # (B, R)
        inside = met.gather(-1, block.places[:, None])[:, 0]
        scored = (count + fresh.sum(-1)).float()
        return block.placed(met[block.pairs.rows, block.pairs.columns], inside, scored)

    return place


def _ranker_beside(head: nn.Module, parts: Parts) -> Support:
    """A hot core, and the best of a low-rank scorer outside of it."""
    whole = part_of(head, CoreAndTail)
    core, tail = whole.core, whole.tail
    assert isinstance(tail, RankerTail)
    count = min(max(tail.size, parts.width - core.size), len(core.outside))
    ask = parts.shortlist(head, tail.scorer, Shortlist(count, core.inside)) if count else None

    def place(block: Block) -> Placed:
        table = core.inside
        found = block.placed(table[block.pairs.columns], table[block.places], core.size + count)
        if ask is None:
            return found
        beside = ask(block)
        return Placed(found.rank + beside.above, found.inside | beside.inside, found.scored)

    return place


def _hybrid(head: HybridHead, parts: Parts) -> Support:
    return _text_beside(head, parts) if head.context_size else _ranker_beside(head, parts)


# kind -> what makes a head's answers of it; a kind of models.heads.HEADS that is missing here cannot be replayed.
SUPPORTS: dict[str, Callable[[Any, Parts], Support]] = {
    "full": _listed,
    "static": _listed,
    "scheduled": _scheduled,
    "router": _routed,
    "ranker": _ranked,
    "low-rank": _low_rank,
    "context": _text_beside,
    "hybrid": _hybrid,
}
