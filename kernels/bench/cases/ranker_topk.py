"""Benchmark of ``ranker_topk``: the full ranker head in one op, compared with the ops that it fuses."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.draft_topk import draft_topk
from vocabforge.ops.fp8 import quantise_rows
from vocabforge.ops.indexed_logits import indexed_logits
from vocabforge.ops.ranker_select import ranker_select
from vocabforge.ops.ranker_topk import ranker_topk, score_bins

from .types import Inputs, ModelShape, OpCase, normal

_SPREAD = 3.0  # standard deviation of scores and logits
_TOLERANCE = 0.01  # tolerance of log-probabilities


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for the smaller rank with the smallest and middle shortlist, the latter also in 8 bits."""
    rank, middle = shape.ranks[-1], shape.shortlists[len(shape.shortlists) // 2]
    return [
        _case(shape, rank, k, fp8)
        for k, fp8 in ((shape.shortlists[0], False), (middle, False), (middle, True))
    ]


def _case(shape: ModelShape, rank: int, k: int, fp8: bool) -> OpCase:
    n, d, size, topk = shape.rows, shape.hidden, shape.vocab, shape.topk

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        vocab = normal((size, rank), random, dtype, _SPREAD / rank**0.5)
        rows, scale = quantise_rows(vocab) if fp8 else (vocab, None)
        return {
            "hidden": normal((n, d), random, dtype),
            "down": normal((rank, d), random, dtype, d**-0.5),
            "vocab": rows,
            "weight": normal((size, d), random, dtype, _SPREAD / d**0.5),
            "scale": scale,
        }

    def in_parts(inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Run the separate ops, with exactly k candidates."""
        projected = F.linear(inputs["hidden"], inputs["down"])
        ids = ranker_select(projected, inputs["vocab"], k, scale=inputs["scale"])
        return draft_topk(indexed_logits(inputs["hidden"], inputs["weight"], ids), topk, ids=ids)

    read = size * (rank + 4.0 if fp8 else 2.0 * rank)
    return OpCase(
        name=f"ranker_topk N={n} r={rank} k={k}{' fp8' if fp8 else ''}",
        op="ranker_topk",
        sizes={"N": n, "V": size, "d": d, "r": rank, "k": k, "topk": topk, "bits": 8 if fp8 else 16},
        make=make,
        run=lambda inputs, backend: ranker_topk(**inputs, k=k, topk=topk, backend=backend),
        reference=lambda inputs: plain(**inputs),
        floor_bytes=read + 2.0 * d * (rank + k + n) + 12.0 * n * topk,
        floor_flops=2.0 * n * (d * (rank + k) + size * rank),
        baselines={"ranker_select, indexed_logits, draft_topk": in_parts},
        check=partial(check, k),
    )


def plain(
    hidden: Tensor, down: Tensor, vocab: Tensor, weight: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute reference logits and scores (N, V) fp32, and the scores' tolerance (N, 1).

    The tolerance allows for one projected value that another summation order rounds to its neighbour.
    """
    projected, rows = F.linear(hidden, down).float(), vocab.float()
    rows = rows if scale is None else rows * scale[:, None]
    slack = projected.abs().amax(1, keepdim=True) * rows.abs().amax() * torch.finfo(hidden.dtype).eps
    return hidden.float() @ weight.float().T, projected @ rows.T, slack


def check(k: int, inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
    """Describe a problem with the log-probabilities (N, topk) and ids (N, topk), or return None.

    A token whose score is within the tolerance of the threshold may or may not be a candidate.
    """
    (logprobs, ids), (logits, scores, slack) = got, expected
    if int((ids < 0).sum() + (ids >= logits.shape[1]).sum()):
        return "ids outside of the vocabulary"
    if bool((ids.sort(1).values.diff(dim=1) == 0).any()):
        return "an id stands twice in a row"
    low, high = score_bins(scores - slack), score_bins(scores + slack)
    may = high >= low.topk(k, dim=1).values[:, -1:]
    must = low >= high.topk(k, dim=1).values[:, -1:]
    if not bool(may.gather(1, ids).all()):
        return "an id is not a candidate"
    own, none = logits.gather(1, ids), float("-inf")
    best = logits.masked_fill(~must, none).topk(ids.shape[1], 1).values
    if bool((own.sort(1, descending=True).values < best - _TOLERANCE).any()):
        return "a better candidate is missed"
    highest, lowest = (own - logits.masked_fill(~some, none).logsumexp(1, True) for some in (must, may))
    if bool((logprobs > highest + _TOLERANCE).any() | (logprobs < lowest - _TOLERANCE).any()):
        return f"log-probabilities outside of {_TOLERANCE} of what the candidates give"
    return None
