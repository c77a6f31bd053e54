"""Weights in 8 bits: float8_e4m3fn with one fp32 scale a row ("FP8 formats for deep learning", Micikevicius 2022).

Rows are scaled so that their largest entry is the largest number of the format: what is lost is 3 bits of mantissa,
about 2.6% of an entry's size at random, not range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import FLOATS
from .checks import check_dtype, check_shape

FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max  # 448
_TINIEST = torch.finfo(torch.float32).tiny


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in 8 bits, ``weight ≈ rows * scale[:, None]``.

    Args:
        weight: (V, r) fp32, bf16 or fp16, finite.

    Returns:
        rows (V, r) float8_e4m3fn and scale (V,) fp32, above 0.
    """
    check_shape("quantise_rows", "weight", weight, None, None)
    check_dtype("quantise_rows", "weight", weight, FLOATS)
    rows = weight.float()
    largest = rows.abs().amax(-1)
    # A row of zeros, or of numbers that a scale would round to 0, keeps scale 1.
    scale = torch.where(largest > _LARGEST * _TINIEST, largest / _LARGEST, 1.0)
    return (rows / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(FP8), scale


def restore_rows(rows: Tensor, scale: Tensor) -> Tensor:
    """(V, r) fp32 of what :func:`quantise_rows` gave."""
    return rows.float() * scale[:, None]
