"""Benchmark of full draft heads: ranker, selection, logits, softmax, top-k and map to target ids in one call.

Weights are random, with the shape's sizes. Hidden rows of a draft step are either unlike (independent, so a
ranker picks different candidates for each row) or alike (siblings, which share most candidates).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vocabforge.models.heads.interface import DraftHead, DraftState, HeadBase, HeadOptions
from vocabforge.models.heads.registry import build_head
from vocabforge.models.heads.router import Router, top_clusters
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.ops.fp8 import quantise_rows, restore_rows

from . import ranker
from .types import Inputs, ModelShape, OpCase, distinct_ids, integers, normal

LOGIT = 3.0  # standard deviation of the random logits
_TEXT = 256
_HYBRID_CORE = 4096
_NOISE = 0.1  # scale of siblings' noise, relative to a common part of 1
_HYBRID_TAIL = 512
_STEP = 1
# Allows for different summation orders, and for bf16 logits up to about 4 standard deviations.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class BenchHead:
    """Settings of a head in the table.

    Attributes:
        kind: key of ``models.heads.HEADS``.
        label: label in the table.
        dynamic: whether the vocabulary changes from step to step.
        rank, shortlist: settings of a scorer.
        alike: whether the rows of a step are siblings.
        fp8: whether the scorer's rows have 8 bits per weight.
        ops: whether to use our ops instead of plain torch.
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


def some_ids(shape: ModelShape, count: int, random: torch.Generator) -> Tensor:
    """Return (count,) random distinct ids below V, ascending."""
    order = torch.randperm(shape.vocab, generator=random, device=random.device)
    return order[:count].sort().values


def _scorer(shape: ModelShape, setting: BenchHead, base: HeadBase, random: torch.Generator) -> nn.Module:
    dtype = base.weight.dtype
    with torch.device("meta"):
        scorer = LowRankScorer(shape.hidden, shape.vocab, setting.rank)
    down = normal((setting.rank, shape.hidden), random, dtype, shape.hidden**-0.5)
    vocab = normal((shape.vocab, setting.rank), random, dtype, LOGIT / setting.rank**0.5)
    scorer.down.weight, scorer.vocab.weight = nn.Parameter(down, False), nn.Parameter(vocab, False)
    return scorer


def _random_router(shape: ModelShape, base: HeadBase, random: torch.Generator) -> Router:
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
    return router


def text_tokens(shape: ModelShape) -> int:
    """Return the number of tokens that the context head takes from the text."""
    return min(_TEXT, shape.context_tokens // 2)


def hybrid_core(shape: ModelShape) -> int:
    """Return the number of tokens in the hybrid head's core."""
    return min(_HYBRID_CORE, shape.static // 2)


def build_setting(shape: ModelShape, setting: BenchHead, base: HeadBase, random: torch.Generator) -> Built:
    """Build a head over a base of V rows; return it with its trained part and the ids of its base rows."""
    kind, ids, below = setting.kind, base.target_ids, base
    module: nn.Module | None = None
    options: dict[str, Any] = {"ops": setting.ops}
    if setting.rank:  # ranker, low-rank, hybrid
        module = _scorer(shape, setting, base, random)
    if kind == "static":
        ids = some_ids(shape, min(shape.static, shape.vocab), random)
        module = nn.Linear(shape.hidden, len(ids), bias=False, device="meta")
        module.weight = nn.Parameter(base.weight[ids], False)
        below = HeadBase(module.weight, ids, base.embedding)
        return build_head(kind, below, None, HeadOptions(**options)), module, ids
    if kind == "ranker":
        options |= {"shortlist": setting.shortlist, "rows": "own", "fp8": setting.fp8 or None}
    elif kind == "router":
        module = _random_router(shape, base, random)
        budget = max(1, round(shape.router_tokens * shape.clusters / shape.vocab))
        options |= {"budgets": (budget,), "rows": "shared"}
    elif kind == "context":
        text = text_tokens(shape)
        ids = some_ids(shape, shape.context_tokens - text, random)
        options |= {"ranked": tuple(ids.tolist()), "context": text}
    elif kind == "hybrid":
        ids = some_ids(shape, hybrid_core(shape), random)
        options |= {"ranked": tuple(ids.tolist()), "shortlist": setting.shortlist, "rows": "own"}
    return build_head(kind, below, module, HeadOptions(**options)), module, ids


def distribution_of(kind: str, inputs: Inputs, topk: int) -> tuple[Tensor, Tensor | None]:
    """Compute a reference in fp32: logits (N, V) and a bool mask (N, V) of each row's shortlist; None: all.

    Args:
        inputs: inputs of a head's case.
        topk: number of requested tokens; a router opens enough clusters for them.
    """
    head, module, state = inputs["head"], inputs["module"], inputs["state"]
    if kind == "low-rank":
        return _scores(inputs), None
    logits = inputs["hidden"].float() @ inputs["weight"].float().T
    if kind == "full":
        return logits, None
    listed = torch.zeros_like(logits, dtype=torch.bool)
    if kind in ("static", "context", "hybrid"):
        listed[:, inputs["used"]] = True
    if kind == "ranker":
        best = _scores(inputs).topk(max(head.shortlist, topk), dim=1).indices
        listed.scatter_(1, best, True)
    elif kind == "router":
        scores = module(inputs["base"].embedding[state.tokens], state.previous).float()  # (N, M)
        sizes = module.assignment.bincount(minlength=module.clusters)
        opened = top_clusters(scores, sizes, head.budgets[-1], topk)
        together = opened.view(state.requests, -1, opened.shape[1]).any(1)  # (B, M)
        listed = together.repeat_interleave(len(opened) // state.requests, 0)[:, module.assignment]
    elif kind == "context":
        rows = state.context.repeat_interleave(len(listed) // state.requests, 0)  # (N, C)
        listed.scatter_(1, rows, True)
    elif kind == "hybrid":
        tail = _scores(inputs).masked_fill(listed, float("-inf")).topk(head.tail_size, dim=1).indices
        listed.scatter_(1, tail, True)
    return logits, listed


def _scores(inputs: Inputs) -> Tensor:
    """Compute (N, V) low-rank scores; the projection is rounded to the weights' dtype, as in the head."""
    scorer = inputs["module"]
    rows = scorer.head_weight.float()
    if inputs["fp8"]:
        rows = restore_rows(*quantise_rows(scorer.head_weight))
    found: Tensor = scorer.project(inputs["hidden"]).float() @ rows.T
    return found


def settings(shape: ModelShape) -> list[BenchHead]:
    """Return the table's heads for a shape."""
    several = shape.rows > 1
    found = [
        BenchHead("full", "full"),
        BenchHead("full", "full, torch's top-k", ops=False),
        BenchHead("static", f"static {shape.static:,}"),
        BenchHead("static", f"static {shape.static:,}, torch's top-k", ops=False),
        BenchHead("low-rank", f"low rank d/{shape.hidden // shape.ranks[0]}", rank=shape.ranks[0]),
    ]
    for rank in shape.ranks:
        for shortlist in shape.shortlists:
            for alike in (True, False) if several else (True,):
                label = f"ranker d/{shape.hidden // rank}, k = {shortlist:,}"
                label += (", rows alike" if alike else ", rows unlike") if several else ""
                found.append(BenchHead("ranker", label, True, rank, shortlist, alike))
    middle = shape.shortlists[len(shape.shortlists) // 2]
    for rank in shape.ranks:
        label = f"ranker d/{shape.hidden // rank} in fp8, k = {middle:,}"
        found.append(BenchHead("ranker", label, True, rank, middle, fp8=True))
    rank = shape.ranks[-1]
    tail = min(_HYBRID_TAIL, min(shape.shortlists))
    return [
        *found,
        BenchHead("router", f"router, about {shape.router_tokens:,}", True),
        BenchHead("context", f"context {shape.context_tokens:,}", True),
        BenchHead("hybrid", f"hybrid {hybrid_core(shape):,} + {tail}", True, rank, tail),
    ]


def cases(shape: ModelShape) -> list[OpCase]:
    """Return one case per head; ``sizes`` contains its settings."""
    return [case_of(shape, setting) for setting in settings(shape)]


def case_of(shape: ModelShape, setting: BenchHead) -> OpCase:
    """Return the case of a head."""
    moved, work = head_cost(shape, setting)
    name = f"{setting.label} V={shape.vocab} N={shape.rows}"
    return OpCase(
        name=name,
        op=f"head {setting.kind}",
        sizes={
            "V": shape.vocab,
            "N": shape.rows,
            "d": shape.hidden,
            "r": setting.rank,
            "k": setting.shortlist,
            **{name: int(getattr(setting, name)) for name in ("dynamic", "alike", "fp8", "ops")},
        },
        make=partial(_make, shape, setting),
        run=lambda inputs, backend: inputs["head"].topk(inputs["hidden"], shape.topk, inputs["state"]),
        reference=partial(_reference, setting, shape.topk),
        floor_bytes=moved + 2.0 * shape.rows * shape.hidden,
        floor_flops=2.0 * shape.rows * work,
        check=_check,
        dtypes=(torch.bfloat16,),
        goal=_is_goal(shape, setting),
    )


def _is_goal(shape: ModelShape, setting: BenchHead) -> bool:
    """Return whether a head is static, or dynamic with a possible 2x speed-up; see ``gpu_goals.py``."""
    possible = setting.alike or shape.rows <= 10  # otherwise the lists have as many rows as a static head
    small = setting.kind == "ranker" and setting.shortlist == min(shape.shortlists) and possible
    return small or setting.kind in ("static", "context")


def requests_of(rows: int) -> int:
    """Return the number of requests for N rows; up to ten rows are a draft step of one request."""
    return max(1, rows // 10)


def _make(shape: ModelShape, setting: BenchHead, random: torch.Generator, dtype: torch.dtype) -> Inputs:
    rows, device = shape.rows, random.device
    weight = normal((shape.vocab, shape.hidden), random, dtype, LOGIT / shape.hidden**0.5)
    base = HeadBase(nn.Parameter(weight, False), torch.arange(shape.vocab, device=device), weight)
    hidden, previous = (_rows(shape, random, dtype, setting.alike) for _ in range(2))
    tokens = integers(shape.vocab, (1,), random).expand(rows).clone()
    requests = requests_of(rows)
    context = distinct_ids(shape.vocab, (requests, text_tokens(shape)), random)
    head, module, used = build_setting(shape, setting, base, random)
    own = {f"part {n}": one for n, one in enumerate(module.parameters())} if module is not None else {}
    return {
        "head": head,
        "hidden": hidden,
        "state": DraftState(_STEP, tokens, previous, requests, context),
        "base": base,
        "module": module,
        "used": used,
        "fp8": setting.fp8,
        "weight": weight,
        **own,
    }


def _rows(shape: ModelShape, random: torch.Generator, dtype: torch.dtype, alike: bool) -> Tensor:
    """Return (N, d) hidden states of about unit scale."""
    if not alike:
        return normal((shape.rows, shape.hidden), random, dtype)
    common = normal((requests_of(shape.rows), shape.hidden), random, dtype)
    common = common.repeat_interleave(shape.rows // len(common), 0)
    noise = normal((len(common), shape.hidden), random, dtype, _NOISE)
    return common + noise


def head_cost(shape: ModelShape, setting: BenchHead, item: int = 2) -> tuple[float, float]:
    """Return the minimum bytes read per step and the multiply-adds per row.

    The scorer or MLP is read in full, and each listed row once.

    Args:
        item: bytes per weight.
    """
    d, unlike = shape.hidden, 1 if setting.alike else shape.rows
    scorer = setting.rank * (shape.vocab + d)  # 0 without a scorer
    routed = max(1, d // 4) * (2 * d + shape.clusters) if setting.kind == "router" else 0
    rows = {
        "full": shape.vocab,
        "static": min(shape.static, shape.vocab),
        "low-rank": 0,
        "ranker": setting.shortlist,
        "router": shape.router_tokens,
        "context": shape.context_tokens,
        "hybrid": hybrid_core(shape) + setting.shortlist,
    }[setting.kind]
    moved = float((scorer + routed + min(rows * unlike, shape.vocab) * d) * item)
    if setting.fp8:  # 1 byte per weight of W_vocab, 4 per row
        moved += shape.vocab * (setting.rank * (1.0 - item) + 4.0)
    return moved, float(scorer + routed + rows * d)


def _reference(setting: BenchHead, topk: int, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return (N, V) fp32 log-probabilities, -inf outside a row's shortlist."""
    logits, listed = distribution_of(setting.kind, inputs, topk)
    if listed is not None:
        logits = logits.masked_fill(~listed, float("-inf"))
    return (logits.log_softmax(-1),)


def _check(inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
    """Check that returned ids have the reference's log-probabilities and include the best tokens."""
    (logprobs, ids), (distribution,) = got, expected
    k = ids.shape[1]
    if (problem := ranker.wrong_ids(ids, distribution.shape[1])) is not None:
        return problem
    for what, theirs in (
        ("of the ids", distribution.gather(1, ids)),
        ("of the best", distribution.topk(k, 1).values),
    ):
        error = float((logprobs.double() - theirs.double()).abs().max())
        if not error <= _TOLERANCE:
            return f"log-probabilities {what} differ by {error:.3f}"
    return None
