"""The target's greedy choice: the largest logit of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import FLOATS, Op
from .checks import check_dtype, check_range, check_shape


def target_choice_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`target_choice`, in PyTorch."""
    highest, choices = logits.max(-1)  # (R,), the first of equal maxima; NaN is the largest
    return choices, highest > -torch.inf


_OP = Op("target_choice", target_choice_reference, FLOATS)


def target_choice(logits: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """The token that each row of logits chooses at temperature 0, and whether the row is a distribution.

    Args:
        logits: (R, V) fp32, bf16 or fp16; fp64 in the reference, too.

    Returns:
        choices (R,) int64, the first of equal maxima; valid (R,) bool, False where the row holds NaN or nothing above
        -inf: its choice then means nothing.
    """
    check_shape("target_choice", "logits", logits, None, None)
    check_dtype("target_choice", "logits", logits, FLOATS | {torch.float64})
    check_range("target_choice", "the vocabulary", logits.shape[1], 1, 2**31)
    choices, valid = _OP(backend, logits.contiguous())
    return choices, valid
