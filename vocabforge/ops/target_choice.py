"""Greedy choice of the target: the largest logit of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import check_range, check_tensors
from .backend import FLOATS, Op


def target_choice_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute :func:`target_choice` in PyTorch."""
    highest, choices = logits.max(-1)  # (R,), the first of equal maxima; NaN is the largest
    return choices, highest > -torch.inf


_OP = Op("target_choice", target_choice_reference, FLOATS)


def target_choice(logits: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """Return the argmax of each row of logits, and whether the row is a valid distribution.

    Args:
        logits: (R, V) fp32, bf16 or fp16; the reference also supports fp64.

    Returns:
        choices (R,) int64, the first of equal maxima; valid (R,) bool, False if the row contains NaN or
        nothing above -inf (its choice is then undefined).
    """
    check_tensors("target_choice", ("logits", logits, "RV", FLOATS | {torch.float64}))
    check_range("target_choice", "the vocabulary", logits.shape[1], 1, 2**31)
    choices, valid = _OP(backend, logits.contiguous())
    return choices, valid
