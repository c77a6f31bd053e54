"""Benchmarks of the ranker: its scores of all tokens with the selection of candidates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.fp8 import quantise_rows
from vocabforge.ops.ranker_select import ranker_select, ranker_select_reference

from .types import Inputs, ModelShape, OpCase, normal

LEAST_RECALL = 0.9  # recall of the 16-bit candidates in 8 bits; random weights of rank 64 give 0.97
_SPREAD = 3.0  # standard deviation of scores and logits
_TOLERANCE = 0.01  # tolerance of log-probabilities


def select_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for each rank and shortlist size, and in 8 bits for the middle size."""
    middle = shape.shortlists[len(shape.shortlists) // 2]
    found = [_select(shape, rank, k, False) for rank in shape.ranks for k in shape.shortlists]
    return found + [_select(shape, rank, middle, True) for rank in shape.ranks if rank % 16 == 0]


def recall(found: Tensor, wanted: Tensor, size: int) -> float:
    """Return the share of ids ``wanted`` (N, k), below ``size``, that are in ``found`` (N, k)."""
    inside = [
        torch.zeros(len(ids), size, dtype=torch.bool, device=ids.device).scatter_(1, ids.long(), True)
        for ids in (found, wanted)
    ]
    return float((inside[0] & inside[1]).sum() / wanted.numel())


def _select(shape: ModelShape, rank: int, k: int, fp8: bool) -> OpCase:
    rows, vocab = shape.rows, shape.vocab

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        projected = normal((rows, rank), random, dtype)
        weight = normal((vocab, rank), random, dtype, rank**-0.5)
        found, scale = quantise_rows(weight) if fp8 else (weight, None)
        return {"projected": projected, "vocab": found, "k": k, "scale": scale, "weight": weight}

    def run(inputs: Inputs, backend: str) -> Tensor:
        return ranker_select(inputs["projected"], inputs["vocab"], k, scale=inputs["scale"], backend=backend)

    def share_found(inputs: Inputs, got: tuple[Tensor, ...]) -> float:
        """Return the recall of the 16-bit candidates."""
        return recall(got[0], ranker_select_reference(inputs["projected"], inputs["weight"], k), vocab)

    def check(inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
        problem = _difference(inputs, got[0])
        if problem is None and fp8 and (share := share_found(inputs, got)) < LEAST_RECALL:
            problem = f"recall of {share:.3f} of the 16-bit candidates"
        return problem

    def matmul_and_topk(inputs: Inputs) -> Tensor:
        """Compute the result in PyTorch, in 16 bits."""
        scores = F.linear(inputs["projected"], inputs["weight"]).float()
        return scores.topk(k, dim=-1, sorted=False).indices

    return OpCase(
        name=f"ranker_select N={rows} r={rank} k={k}{' fp8' if fp8 else ''}",
        op="ranker_select",
        sizes={"N": rows, "V": vocab, "r": rank, "k": k, "bits": 8 if fp8 else 16},
        make=make,
        run=run,
        reference=lambda inputs: run(inputs, "reference"),
        floor_bytes=vocab * (rank + 4.0 if fp8 else 2.0 * rank) + 2.0 * rows * rank + 4.0 * rows * k,
        floor_flops=2.0 * rows * vocab * rank,
        baselines={"16-bit matmul and topk": matmul_and_topk},
        check=check,
        measures={"recall": share_found} if fp8 else {},
    )


def _difference(inputs: Inputs, found: Tensor) -> str | None:
    """Describe a duplicate id or a score below the threshold (beyond fp32 rounding), or return None."""
    projected, vocab, k = inputs["projected"].float(), inputs["vocab"].float(), inputs["k"]
    scores, sizes = projected @ vocab.T, projected.norm(dim=-1, keepdim=True) * vocab.norm(dim=-1).amax()
    if inputs["scale"] is not None:
        scores, sizes = scores * inputs["scale"], sizes * inputs["scale"].amax()
    if found.shape != (len(projected), k):
        return f"ids of shape {tuple(found.shape)} instead of {(len(projected), k)}"
    if (problem := wrong_ids(found, len(vocab))) is not None:
        return problem
    border = scores.topk(k, dim=-1).values[:, -1:]
    low = int((scores.gather(-1, found.long()) < border - 1e-5 * sizes).sum())
    return f"{low} ids below the border" if low else None


def wrong_ids(ids: Tensor, vocab: int) -> str | None:
    """Return whether ids (N, k) are outside of the vocabulary, or stand twice in a row."""
    if int((ids < 0).sum() + (ids >= vocab).sum()):
        return "ids outside of the vocabulary"
    return "an id stands twice in a row" if bool((ids.sort(1).values.diff(dim=1) == 0).any()) else None
