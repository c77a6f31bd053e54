"""The mathematics of the vocabulary loss on one block of rows; both implementations use it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def scores(states: Tensor, head: Tensor, out: torch.dtype) -> Tensor:
    """Logits ``states @ head.T``, read in the head's type: (N, H), (R, H) -> (N, R) of type ``out``."""
    return product(states.to(head.dtype), head.t(), out)


def product(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    """``a @ b`` accumulated in fp32 and given as ``out`` (fp32, or fp64 for fp64).

    CUDA writes fp32 where it needs no autograd; elsewhere a product of bf16 rounds to bf16 once, at its end.
    """
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.is_cuda and out == torch.float32 and a.dtype != out and not graph:
        return torch.mm(a, b, out_dtype=out)
    return (a @ b).to(out)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def teacher_terms(
    z: Tensor, target_ids: Tensor | None, offset: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """What draft rows need of their teacher.

    Args:
        z: (C, V) target logits.
        target_ids: (R,) columns of the draft vocabulary; None: all of them.
        offset: (R,) fp32, where a column stands for further tokens (:mod:`.candidates`): it counts in the sums, and
            not for which logit is the largest.

    Returns:
        p (C, R) the target's distribution renormalised over the draft vocabulary; the same tokens' probabilities
        over all V tokens (C, R), None with an ``offset``; its argmax token (C,); bool (C,), that argmax is in the
        draft vocabulary.
    """
    best = z.argmax(-1)  # the first of equal maxima
    if target_ids is None:
        some, inside = z, torch.ones_like(best, dtype=torch.bool)
    else:
        some = z[:, target_ids]
        # Equal values alone would not do: a draft token may merely tie with the argmax.
        inside = target_ids[some.argmax(-1)] == best
    if offset is not None:
        return (some + offset).softmax(-1), None, best, inside
    p = some.softmax(-1)
    full = p if target_ids is None else (some - z.logsumexp(-1, keepdim=True)).exp()
    return p, full, best, inside


def row_terms(
    s: Tensor, p: Tensor, full: Tensor | None, offset: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draft rows against their teachers, row by row.

    Args:
        s: (N, R) draft logits.
        p, full: (N, R) of :func:`teacher_terms`.
        offset: (R,) likewise; p and q then are the chances of all that a column stands for.

    Returns:
        CE (N,) of p and q; sum_v min(full, q) (N,), NaN without ``full``; argmax column (N,); q - p (N, R), the
        gradient of CE by ``s``.
    """
    found = s.argmax(-1)
    log_q = s.log_softmax(-1) if offset is None else (s + offset).log_softmax(-1)
    losses = -(p * log_q).sum(-1)
    q = log_q.exp()
    overlap = torch.full_like(losses, torch.nan) if full is None else torch.minimum(full, q).sum(-1)
    return losses, overlap, found, q - p


@functools.cache
def row_function(compiled: bool) -> Callable[..., Any]:
    """:func:`row_terms`, as one compiled kernel or as it stands."""
    return torch.compile(row_terms, dynamic=True) if compiled else row_terms


@functools.cache
def teacher_function(compiled: bool) -> Callable[..., Any]:
    """:func:`teacher_terms`, compiled or as it stands."""
    return torch.compile(teacher_terms, dynamic=True) if compiled else teacher_terms
