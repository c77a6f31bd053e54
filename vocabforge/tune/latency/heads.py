"""Draft heads of usual sizes with random weights over a drafter's own rows: time depends on sizes, not on weights.

They tell what a head would cost before one is trained. What depends on weights is approximate: how many candidates the
rows of a step share (a random scorer's share fewer than a trained one's), and how evenly clusters are opened.
"""

from __future__ import annotations

import torch

from ...models.heads.interface import DraftHead, HeadBase, HeadOptions
from ...models.heads.registry import build_head
from ...models.heads.router import Router
from ...models.heads.scorer import LowRankScorer


def usual_heads(base: HeadBase) -> list[DraftHead]:
    """Heads of about the sizes that papers use.

    Static subsets of 1/16 to 1/2 of the tokens (FR-Spec: 1/4 of Llama 3's), rankers of d' = H/16 and H/8 (SpecVocab)
    with 1/64 and 1/16 of the tokens, a router that opens 1/8 of its clusters of about 64 tokens (DynaSpec), a context
    and a hybrid head around a core of 1/32. Sizes beyond the drafter's head are left out.

    Args:
        base: of the drafter (``models.heads.base_of``).
    """
    rows, hidden = base.weight.shape
    tokens, place = len(base.embedding), base.weight
    ranks = sorted({max(1, hidden // 16), max(1, hidden // 8)})
    short, long = max(8, rows // 64), max(16, rows // 16)
    core, clusters = max(8, rows // 32), max(2, rows // 64)

    def spread(count: int) -> torch.Tensor:
        return torch.arange(count, device=place.device) * rows // count

    def scorer(rank: int) -> LowRankScorer:
        made = LowRankScorer(hidden, tokens, rank)
        made.init_random(0)
        return made.to(place.device, place.dtype).requires_grad_(False)

    found: list[DraftHead] = []
    for size in sorted({max(8, rows // part) for part in (16, 8, 4, 2)}):
        if size < rows:
            kept = spread(size)  # a copy: a subset that was cut is in one piece
            part = HeadBase(base.weight[kept].clone(), base.target_ids[kept], base.embedding)
            found.append(build_head("static", part))
    for rank in ranks:
        for size in sorted({short, long}):
            if size < rows:
                found.append(build_head("ranker", base, scorer(rank), HeadOptions(shortlist=size)))
    if clusters <= rows:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            router = Router(hidden, torch.arange(tokens) % clusters, clusters).to(place.device, place.dtype)
        found.append(build_head("router", base, router, HeadOptions(budgets=(max(1, clusters // 8),))))
    if core + short <= rows:
        ranked = tuple(base.target_ids[spread(core)].tolist())
        found.append(build_head("context", base, None, HeadOptions(ranked=ranked, context=short)))
        hybrid = HeadOptions(ranked=ranked, shortlist=short)
        found.append(build_head("hybrid", base, scorer(ranks[0]), hybrid))
    return found
