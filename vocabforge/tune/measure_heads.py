"""Draft heads of asked sizes with random weights over a drafter's own rows: time depends on sizes, not on weights.

They tell what a head would cost before one is trained. What depends on weights is near at best: how many candidates the
rows of a step share (a random scorer's share fewer than a trained one's), and how evenly clusters are opened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.errors import UsageError
from ..models.head_types import DraftHead, HeadBase, HeadOptions
from ..models.heads import build_head
from ..models.heads_router import Router
from ..models.low_rank import LowRankScorer


@dataclass(frozen=True)
class HeadGrid:
    """Sizes of draft heads; those beyond the drafter's head are left out.

    Attributes:
        static: R of static subsets.
        rankers: (d', k) of rankers.
        routers: (clusters, budget) of routers.
        contexts: (core, tokens of the text) of context heads.
        hybrids: (core, d', tail) of hybrid heads.
    """

    static: tuple[int, ...] = ()
    rankers: tuple[tuple[int, int], ...] = ()
    routers: tuple[tuple[int, int], ...] = ()
    contexts: tuple[tuple[int, int], ...] = ()
    hybrids: tuple[tuple[int, int, int], ...] = ()


def usual_grid(rows: int, hidden: int) -> HeadGrid:
    """Sizes about those that papers use, for a head of ``rows`` tokens and that hidden size.

    Static subsets of 1/16 to 1/2 of the tokens (FR-Spec: 1/4 of Llama 3's), rankers of d' = H/16 and H/8 (SpecVocab)
    with 1/64 and 1/16 of the tokens, a router that opens 1/8 of its clusters of about 64 tokens (DynaSpec), a context
    and a hybrid head around a core of 1/32.
    """
    ranks = sorted({max(1, hidden // 16), max(1, hidden // 8)})
    short, long = max(8, rows // 64), max(16, rows // 16)
    clusters = max(2, rows // 64)
    core = max(8, rows // 32)
    return HeadGrid(
        static=tuple(max(8, rows // part) for part in (16, 8, 4, 2)),
        rankers=tuple((rank, size) for rank in ranks for size in (short, long)),
        routers=((clusters, max(1, clusters // 8)),),
        contexts=((core, max(8, rows // 64)),),
        hybrids=tuple((core, rank, short) for rank in ranks[:1]),
    )


def random_heads(base: HeadBase, grid: HeadGrid, *, seed: int = 0) -> list[DraftHead]:
    """Heads of these sizes over an exact head, smallest of each kind first.

    Args:
        base: of the drafter (``models.heads.base_of``).

    Raises:
        UsageError: a size below 1, or a rank above the hidden size.
    """
    rows, hidden = base.weight.shape
    for sizes in vars(grid).values():
        if any(size < 1 for entry in sizes for size in (entry if isinstance(entry, tuple) else (entry,))):
            raise UsageError("sizes of draft heads are 1 or more", got=sizes, expected="1 or more")
    found = [build_head("static", _part(base, size)) for size in sorted(set(grid.static)) if size < rows]
    for rank, size in sorted(set(grid.rankers)):
        if size < rows:
            found.append(build_head("ranker", base, _scorer(base, rank, seed), HeadOptions(shortlist=size)))
    for clusters, budget in sorted(set(grid.routers)):
        if budget <= clusters <= rows:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                router = Router(hidden, torch.arange(len(base.embedding)) % clusters, clusters)
            options = HeadOptions(budgets=(budget,))
            found.append(
                build_head("router", base, router.to(base.weight.device, base.weight.dtype), options)
            )
    for core, size in sorted(set(grid.contexts)):
        if core < rows and size <= len(base.embedding):
            found.append(
                build_head("context", base, None, HeadOptions(ranked=_spread(base, core), context=size))
            )
    for core, rank, size in sorted(set(grid.hybrids)):
        if core + size <= rows:
            options = HeadOptions(ranked=_spread(base, core), shortlist=size)
            found.append(build_head("hybrid", base, _scorer(base, rank, seed), options))
    return found


def _places(base: HeadBase, count: int) -> torch.Tensor:
    """That many rows, evenly spread."""
    rows = len(base.weight)
    return torch.arange(count, device=base.weight.device) * rows // count


def _spread(base: HeadBase, count: int) -> tuple[int, ...]:
    return tuple(base.target_ids[_places(base, count)].tolist())


def _part(base: HeadBase, count: int) -> HeadBase:
    """A copy of some rows: a subset that was cut lies in one piece."""
    places = _places(base, count)
    return HeadBase(base.weight[places].clone(), base.target_ids[places], base.embedding)


def _scorer(base: HeadBase, rank: int, seed: int) -> LowRankScorer:
    scorer = LowRankScorer(base.weight.shape[1], len(base.embedding), rank)
    scorer.init_random(seed)
    return scorer.to(base.weight.device, base.weight.dtype).requires_grad_(False)
