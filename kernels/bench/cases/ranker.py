"""Benchmark of the ranker: its scores of all tokens with the selection of candidates."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.ranker_select import ranker_select, ranker_select_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, normal


def select_cases(shape: ModelShape) -> list[OpCase]:
    return [_select(shape, rank, k) for rank in shape.ranks for k in shape.shortlists]


def _select(shape: ModelShape, rank: int, k: int) -> OpCase:
    rows, vocab = shape.rows, shape.vocab

    def plain(inputs: Inputs) -> Tensor:
        scores = F.linear(inputs["projected"], inputs["vocab"]).float()
        return scores.topk(k, dim=-1, sorted=False).indices

    return case_of_op(
        ranker_select,
        ranker_select_reference,
        {"k": k},
        name=f"N={rows} V={vocab} r={rank} k={k}",
        make=lambda random, dtype: {
            "projected": normal((rows, rank), random, dtype),
            "vocab": normal((vocab, rank), random, dtype, rank**-0.5),
        },
        floor_bytes=2.0 * vocab * rank + 2.0 * rows * rank + 4.0 * rows * k,
        floor_flops=2.0 * rows * vocab * rank,
        plain=plain,
        check=lambda inputs, got, expected: _difference(inputs, k, got[0]),
    )


def _difference(inputs: Inputs, k: int, ids: Tensor) -> str | None:
    """Describe a duplicate id or a score below the threshold (beyond fp32 rounding), or return None."""
    projected, vocab = inputs["projected"].float(), inputs["vocab"].float()
    scores, sizes = projected @ vocab.T, projected.norm(dim=-1, keepdim=True) * vocab.norm(dim=-1).amax()
    if ids.shape != (len(projected), k):
        return f"ids of shape {tuple(ids.shape)} instead of {(len(projected), k)}"
    if (problem := wrong_ids(ids, len(vocab))) is not None:
        return problem
    border = scores.topk(k, dim=-1).values[:, -1:]
    low = int((scores.gather(-1, ids.long()) < border - 1e-5 * sizes).sum())
    return f"{low} ids below the border" if low else None


def wrong_ids(ids: Tensor, vocab: int) -> str | None:
    """Return whether ids (N, k) are outside of the vocabulary, or stand twice in a row."""
    if int((ids < 0).sum() + (ids >= vocab).sum()):
        return "ids outside of the vocabulary"
    return "an id stands twice in a row" if bool((ids.sort(1).values.diff(dim=1) == 0).any()) else None
