"""Ranker head in one op: candidates by low-rank score, exact logits, log-softmax and top-k (SpecVocab)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import UsageError
from .backend import HALVES, Op
from .checks import check_dtype, check_range, check_shape, check_together
from .draft_topk import draft_topk_reference
from .fp8 import FP8
from .union_logits import check_head

MOST_TOPK, MOST_ANSWERS = 32, 1536  # results per row, and of all rows together


def ranker_topk(
    hidden: Tensor,
    down: Tensor,
    vocab: Tensor,
    weight: Tensor,
    k: int,
    topk: int,
    *,
    scale: Tensor | None = None,
    target_ids: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Fuse ``ranker_select``, ``indexed_logits`` and ``draft_topk`` over the candidates of :func:`shortlist`.

    Scores and logits are accumulated in fp32; the projection ``down @ hidden`` is rounded to the dtype of
    ``hidden``. The shortlist has the top k and a few more candidates. This has two effects: a token outside
    the top k may be returned, and log-probabilities are normalised over more tokens, so none is higher. Any
    number of candidates is supported, in the worst case all V.

    Args:
        hidden: (N, d) bf16 or fp16 (fp32 only without the CUDA kernels), N at most 64, d a multiple of 8.
        down: (r, d) of the same dtype, r a multiple of 8 (of 16 with ``scale``).
        vocab: (V, r) of the same dtype, or float8_e4m3fn with ``scale``; V at most 2^20.
        weight: (V, d) LM head rows of the dtype of ``hidden``.
        k: minimum number of candidates per row, 1 to V.
        topk: results per row, 1 to ``MOST_TOPK``; N * topk is at most ``MOST_ANSWERS``.
        scale: (V,) fp32 scale of each row of ``vocab`` (ops/fp8.py).
        target_ids: (V,) int64, distinct, below 2**31; None: row i is id i.

    Returns:
        Log-probabilities (N, topk) fp32 in descending order and ids (N, topk) int64; ties go to the lower id,
        as in ``draft_topk``.

    Raises:
        UsageError: unsupported shape, dtype or device, or unavailable backend.
    """
    name = "ranker_topk"
    check_head(name, hidden, weight)
    step = 8 if scale is None else 16
    check_shape(name, "down", down, None, hidden.shape[1])
    check_dtype(name, "down", down, {hidden.dtype})
    if not len(down) or len(down) % step:
        raise UsageError(f"{name}: unsupported rank", got=len(down), expected=f"a multiple of {step}")
    check_shape(name, "vocab", vocab, len(weight), len(down))
    check_dtype(name, "vocab", vocab, {hidden.dtype} if scale is None else {FP8})
    check_range(name, "k", k, 1, len(weight))
    check_range(name, "topk", topk, 1, min(MOST_TOPK, MOST_ANSWERS // len(hidden)))
    for what, tensor, dtype in (("scale", scale, torch.float32), ("target_ids", target_ids, torch.int64)):
        if tensor is not None:
            check_shape(name, what, tensor, len(weight))
            check_dtype(name, what, tensor, {dtype})
    check_together(name, (hidden, down, vocab, scale, target_ids))
    given = [
        one if one is None else one.contiguous() for one in (hidden, down, vocab, weight, scale, target_ids)
    ]
    answer: tuple[Tensor, Tensor] = _OP(backend, *given[:4], k, topk, *given[4:])
    return answer


def takes(rows: int, topk: int) -> bool:
    """Return whether the op supports this size: each block keeps the best of all rows in shared memory."""
    return topk <= MOST_TOPK and rows * topk <= MOST_ANSWERS


def shortlist(scores: Tensor, k: int) -> Tensor:
    """Return candidates, bool (N, V): the top k of fp32 scores (N, V) and all others in the k-th score's bin.

    If that bin has b scores, there are k to k - 1 + b candidates; b is at most V.
    """
    bins = score_bins(scores)
    return bins >= bins.topk(k, dim=-1).values[:, -1:]


def score_bins(scores: Tensor) -> Tensor:
    """Return bin numbers (N, V) int32 that increase with the fp32 scores (N, V).

    Per sign, each octave has 16 bins (8 for more than 32 rows) for magnitudes from 2^-6 to 960 (896). Smaller
    magnitudes share one bin, and so do larger ones. NaN is in the lowest bin.
    """
    detail = 4 if len(scores) <= 32 else 3
    side, lowest = 16 << detail, (127 - 6) << detail
    bits = (scores + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    above = (((bits & 0x7FFFFFFF) >> (23 - detail)) - lowest + 1).clamp(0, side - 1)
    return torch.where(bits >= 0, side + above, side - 1 - above).masked_fill(scores.isnan(), 0)


def ranker_topk_reference(
    hidden: Tensor,
    down: Tensor,
    vocab: Tensor,
    weight: Tensor,
    k: int,
    topk: int,
    scale: Tensor | None = None,
    target_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`ranker_topk` in PyTorch, from the logits of all V tokens."""
    projected = (hidden.float() @ down.float().T).to(hidden.dtype)
    scores = projected.float() @ vocab.float().T  # (N, V)
    candidates = shortlist(scores if scale is None else scores * scale, k)
    logits = (hidden.float() @ weight.float().T).masked_fill(~candidates, -torch.inf)
    return draft_topk_reference(logits, topk, None, target_ids)


_OP = Op("ranker_topk", ranker_topk_reference, HALVES)
