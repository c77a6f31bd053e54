"""Draft heads of given settings with random weights, as benchmarks time them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...models.head_types import DraftHead, HeadBase, HeadOptions
from ...models.heads import build_head
from ...models.heads_router import Router
from ...models.low_rank import LowRankScorer
from .types import Shape, normal

LOGIT = 3.0  # standard deviation of the random logits
_TEXT = 256
_HYBRID_CORE = 4096


@dataclass(frozen=True)
class HeadSetting:
    """One head of the table.

    Attributes:
        kind: row of ``models.heads.HEADS``.
        label: for the table.
        dynamic: its vocabulary changes from step to step.
        rank, shortlist: of a scorer.
        alike: the rows of a step are siblings.
        fp8: the scorer's rows have 8 bits a weight.
        ops: on our ops; else top-k and all as torch alone does it.
    """

    kind: str
    label: str
    dynamic: bool = False
    rank: int = 0
    shortlist: int = 0
    alike: bool = True
    fp8: bool = False
    ops: bool = True


Built = tuple[DraftHead, "nn.Module | None", Tensor]  # head, trained part, ids of the rows below it
Builder = Callable[[Shape, HeadSetting, HeadBase, torch.Generator], Built]


def some_ids(shape: Shape, count: int, random: torch.Generator) -> Tensor:
    """(count,) random ids below V, ascending, each once."""
    order = torch.randperm(shape.vocab, generator=random, device=random.device)
    return order[:count].sort().values


def _full(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    return build_head("full", base, None, HeadOptions(ops=setting.ops)), None, base.target_ids


def _static(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    ids = some_ids(shape, min(shape.static, shape.vocab), random)
    rows = nn.Linear(shape.hidden, len(ids), bias=False, device="meta")
    rows.weight = nn.Parameter(base.weight[ids], False)
    below = HeadBase(rows.weight, ids, base.embedding)
    return build_head("static", below, None, HeadOptions(ops=setting.ops)), rows, ids


def _scorer(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> nn.Module:
    dtype = base.weight.dtype
    with torch.device("meta"):
        scorer = LowRankScorer(shape.hidden, shape.vocab, setting.rank)
    down = normal((setting.rank, shape.hidden), random, dtype, shape.hidden**-0.5)
    vocab = normal((shape.vocab, setting.rank), random, dtype, LOGIT / setting.rank**0.5)
    scorer.down.weight, scorer.vocab.weight = nn.Parameter(down, False), nn.Parameter(vocab, False)
    return scorer


def _ranker(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    scorer = _scorer(shape, setting, base, random)
    options = HeadOptions(shortlist=setting.shortlist, rows="own", fp8=setting.fp8 or None, ops=setting.ops)
    return build_head("ranker", base, scorer, options), scorer, base.target_ids


def _low_rank(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    scorer = _scorer(shape, setting, base, random)
    return build_head("low-rank", base, scorer, HeadOptions(ops=setting.ops)), scorer, base.target_ids


def _router(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    dtype, clusters = base.weight.dtype, shape.clusters
    assignment = torch.randperm(shape.vocab, generator=random, device=random.device) % clusters
    with torch.device("meta"):
        router = Router(shape.hidden, torch.zeros(shape.vocab, dtype=torch.int64), clusters)
    router.assignment = assignment
    for layer in (*router.layers, router.out):
        assert isinstance(layer, nn.Linear)
        fan = layer.in_features
        layer.weight = nn.Parameter(normal((layer.out_features, fan), random, dtype, fan**-0.5), False)
        layer.bias = nn.Parameter(normal((layer.out_features,), random, dtype, 0.1), False)
    options = HeadOptions(budgets=(router_budget(shape),), rows="shared", ops=setting.ops)
    return build_head("router", base, router, options), router, base.target_ids


def router_budget(shape: Shape) -> int:
    """Clusters that hold about ``router_tokens`` of the vocabulary."""
    return max(1, round(shape.router_tokens * shape.clusters / shape.vocab))


def _context(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    text = text_tokens(shape)
    ids = some_ids(shape, shape.context_tokens - text, random)
    options = HeadOptions(ranked=tuple(ids.tolist()), context=text, ops=setting.ops)
    return build_head("context", base, None, options), None, ids


def text_tokens(shape: Shape) -> int:
    """Tokens of the context head that come from the text."""
    return min(_TEXT, shape.context_tokens // 2)


def hybrid_core(shape: Shape) -> int:
    """Tokens of the hybrid head's core."""
    return min(_HYBRID_CORE, shape.static // 2)


def _hybrid(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    scorer, ids = _scorer(shape, setting, base, random), some_ids(shape, hybrid_core(shape), random)
    options = HeadOptions(
        ranked=tuple(ids.tolist()), shortlist=setting.shortlist, rows="own", ops=setting.ops
    )
    return build_head("hybrid", base, scorer, options), scorer, ids


_BUILDERS: dict[str, Builder] = {
    "full": _full,
    "static": _static,
    "ranker": _ranker,
    "low-rank": _low_rank,
    "router": _router,
    "context": _context,
    "hybrid": _hybrid,
}


def build_setting(shape: Shape, setting: HeadSetting, base: HeadBase, random: torch.Generator) -> Built:
    """The head of a setting over a base of V rows, its trained part, and ids of the rows below it."""
    return _BUILDERS[setting.kind](shape, setting, base, random)
