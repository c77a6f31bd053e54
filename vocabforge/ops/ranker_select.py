"""Candidates of the ranker: the top k of all tokens by a low-rank score (SpecVocab)."""

from __future__ import annotations

from torch import Tensor

from ..core.errors import UsageError
from .arguments import check_range, check_tensors
from .backend import FLOATS, HALVES, Op
from .ordering import top_set

MOST_ROWS, MOST_VOCAB = 64, 1 << 20


def ranker_select(projected: Tensor, vocab: Tensor, k: int, *, backend: str = "auto") -> Tensor:
    """Return the top k of ``s = vocab @ projected`` for each row in any order, accumulated in fp32.

    The set is exact: ties for the last place go to the lower ids. NaN ranks below -inf.

    Args:
        projected: (N, r) ``W_down h``, bf16 or fp16 (fp32 on the CPU), N from 1 to 64.
        vocab: (V, r) of the same dtype; V at most 2**20. r must be a multiple of 8.
        k: 1 to V.

    Returns:
        (N, k) int32, distinct within a row.
    """
    name = "ranker_select"
    check_tensors(name, ("projected", projected, "Nr", FLOATS), ("vocab", vocab, "Vr", {projected.dtype}))
    check_range(name, "rows", len(projected), 1, MOST_ROWS)
    check_range(name, "vocabulary", len(vocab), 1, MOST_VOCAB)
    check_range(name, "k", k, 1, len(vocab))
    if projected.shape[1] % 8:
        raise UsageError(f"{name}: unsupported rank", got=projected.shape[1], expected="a multiple of 8")
    return _OP(backend, projected.contiguous(), vocab.contiguous(), k)


def ranker_select_reference(projected: Tensor, vocab: Tensor, k: int) -> Tensor:
    """Compute :func:`ranker_select` in PyTorch, with ascending ids."""
    return top_set(projected.float() @ vocab.float().T, k, nan=True).int()


_OP = Op("ranker_select", ranker_select_reference, HALVES)
