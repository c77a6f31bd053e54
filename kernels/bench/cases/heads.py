"""Benchmark of full draft heads: ranker, selection, logits, softmax, top-k and map to target ids in one call.

Weights are random, with the shape's sizes. Hidden rows of a draft step are either unlike (independent, so a
ranker picks different candidates for each row) or alike (siblings, which share most candidates).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from vocabforge.models.heads.interface import DraftHead, DraftState, HeadBase, HeadOptions
from vocabforge.models.heads.registry import build_head
from vocabforge.models.heads.scorer import LowRankScorer, Selector

from . import ranker
from .types import Inputs, ModelShape, OpCase, distinct_ids, integers, normal

LOGIT = 3.0  # standard deviation of the random logits
_TEXT = 256
_NOISE = 0.1  # scale of siblings' noise, relative to a common part of 1
_STEP = 1
# Allows for different summation orders, and for bf16 logits up to about 4 standard deviations.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class BenchHead:
    """Settings of a head in the table.

    Attributes:
        kind: key of ``models.heads.HEADS``.
        label: label in the table.
        rank, shortlist: settings of a scorer.
        alike: whether the rows of a step are siblings.
    """

    kind: str
    label: str
    rank: int = 0
    shortlist: int = 0
    alike: bool = True


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


def text_tokens(shape: ModelShape) -> int:
    """Return the number of tokens that the context head takes from the text."""
    return min(_TEXT, shape.context_tokens // 2)


def build_setting(
    shape: ModelShape, setting: BenchHead, base: HeadBase, random: torch.Generator
) -> DraftHead:
    """Build a head over a base of V rows."""
    module: nn.Module | None = None
    options: dict[str, Any] = {"ops": True}
    if setting.kind == "static":
        ids = some_ids(shape, min(shape.static, shape.vocab), random)
        base = HeadBase(nn.Parameter(base.weight[ids], False), ids, base.embedding)
    elif setting.kind == "ranker":
        module = _scorer(shape, setting, base, random)
        options |= {"shortlist": setting.shortlist, "rows": "own"}
    elif setting.kind == "context":
        text = text_tokens(shape)
        ids = some_ids(shape, shape.context_tokens - text, random)
        options |= {"ranked": tuple(ids.tolist()), "context": text}
    return build_head(setting.kind, base, module, HeadOptions(**options))


def settings(shape: ModelShape) -> list[BenchHead]:
    several = shape.rows > 1
    heads = [
        BenchHead("full", "full"),
        BenchHead("static", f"static {shape.static:,}"),
        BenchHead("context", f"context {shape.context_tokens:,}"),
    ]
    for rank in shape.ranks:
        for shortlist in shape.shortlists:
            for alike in (True, False) if several else (True,):
                label = f"ranker d/{shape.hidden // rank}, k = {shortlist:,}"
                label += (", rows alike" if alike else ", rows unlike") if several else ""
                heads.append(BenchHead("ranker", label, rank, shortlist, alike))
    return heads


def cases(shape: ModelShape) -> list[OpCase]:
    return [case_of(shape, setting) for setting in settings(shape)]


def case_of(shape: ModelShape, setting: BenchHead) -> OpCase:
    moved, work = head_cost(shape, setting)
    return OpCase(
        name=f"head {setting.label} V={shape.vocab} N={shape.rows}",
        make=partial(_make, shape, setting),
        run=lambda inputs, backend: inputs["head"].topk(inputs["hidden"], shape.topk, inputs["state"]),
        reference=partial(_reference, shape.topk),
        floor_bytes=moved + 2.0 * shape.rows * shape.hidden,
        floor_flops=2.0 * shape.rows * work,
        check=_check,
        dtypes=(torch.bfloat16,),
        goal=_is_goal(shape, setting),
    )


def _is_goal(shape: ModelShape, setting: BenchHead) -> bool:
    """Return whether a head is static, or dynamic with a possible 2x speed-up."""
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
    return {
        "head": build_setting(shape, setting, base, random),
        "hidden": hidden,
        "state": DraftState(_STEP, tokens, previous, requests, context),
        "weight": weight,
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

    The scorer is read in full, and each listed row once.

    Args:
        item: bytes per weight.
    """
    d, unlike = shape.hidden, 1 if setting.alike else shape.rows
    scorer = setting.rank * (shape.vocab + d)  # 0 without a scorer
    rows = {
        "full": shape.vocab,
        "static": min(shape.static, shape.vocab),
        "ranker": setting.shortlist,
        "context": shape.context_tokens,
    }[setting.kind]
    moved = float((scorer + min(rows * unlike, shape.vocab) * d) * item)
    return moved, float(scorer + rows * d)


def _reference(topk: int, inputs: Inputs) -> tuple[Tensor, ...]:
    """Return (N, V) fp32 log-probabilities by the head's plain scores, -inf outside a row's shortlist."""
    scores = Selector.scores  # a shortlist by scores in bf16 would not be the op's
    with patch.object(Selector, "scores", lambda self, projected: scores(self, projected.float())):
        logits, ids = inputs["head"].scores(inputs["hidden"], topk, inputs["state"])
    scattered = torch.full((len(logits), len(inputs["weight"])), float("-inf"), device=logits.device)
    scattered.scatter_reduce_(1, ids.expand_as(logits), logits.float(), "amax")  # padding has -inf
    return (scattered.log_softmax(-1),)


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
