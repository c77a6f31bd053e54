"""Candidates of the ranker: the top k of all tokens by a low-rank score (SpecVocab)."""

from __future__ import annotations

from torch import Tensor

from ..core.errors import UsageError
from .arguments import FP32, check_range, check_tensors
from .backend import FLOATS, HALVES, Op
from .fp8 import FP8
from .ordering import top_set

MOST_ROWS, MOST_VOCAB = 64, 1 << 20


def ranker_select(
    projected: Tensor, vocab: Tensor, k: int, *, scale: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Return the top k of ``s = (vocab @ projected) * scale`` for each row in any order, accumulated in fp32.

    The set is exact: ties for the last place go to the lower ids. NaN ranks below -inf.

    Args:
        projected: (N, r) ``W_down h``, bf16 or fp16 (fp32 on the CPU), N from 1 to 64.
        vocab: (V, r) of the same dtype, or float8_e4m3fn with ``scale`` (ops/fp8.py); V at most 2**20. r must
            be a multiple of 8 (of 16 in 8 bits).
        k: 1 to V.
        scale: (V,) fp32 scale of each row of ``vocab``.

    Returns:
        (N, k) int32, distinct within a row.
    """
    name = "ranker_select"
    check_tensors(
        name,
        ("projected", projected, "Nr", FLOATS),
        ("vocab", vocab, "Vr", {projected.dtype} if scale is None else {FP8}),
        ("scale", scale, "V", FP32),
    )
    check_range(name, "rows", len(projected), 1, MOST_ROWS)
    check_range(name, "vocabulary", len(vocab), 1, MOST_VOCAB)
    check_range(name, "k", k, 1, len(vocab))
    step = 16 if scale is not None else 8
    if projected.shape[1] % step:
        raise UsageError(
            f"{name}: unsupported rank", got=projected.shape[1], expected=f"a multiple of {step}"
        )
    scale = None if scale is None else scale.contiguous()
    return _OP(backend, projected.contiguous(), vocab.contiguous(), k, scale)


def ranker_select_reference(projected: Tensor, vocab: Tensor, k: int, scale: Tensor | None = None) -> Tensor:
    """Compute :func:`ranker_select` in PyTorch, with ascending ids."""
    scores = projected.float() @ vocab.float().T  # (N, V)
    if scale is not None:
        scores = scores * scale
    return top_set(scores, k, nan=True).int()


_OP = Op("ranker_select", ranker_select_reference, HALVES)
