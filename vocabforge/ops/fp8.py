"""8-bit weights: float8_e4m3fn with one fp32 scale per row.

Source: "FP8 formats for deep learning", Micikevicius 2022.

Each row is scaled so that its largest entry maps to the largest value of the format. The loss is in the
mantissa (3 bits, about 2.6% random error per entry), not in the range.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import check_tensors
from .backend import FLOATS

FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FP8).max  # 448
_TINIEST = torch.finfo(torch.float32).tiny


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows to 8 bits: ``weight ≈ rows * scale[:, None]``.

    Args:
        weight: (V, r) fp32, bf16 or fp16, finite.

    Returns:
        rows (V, r) float8_e4m3fn and scale (V,) fp32, above 0.
    """
    check_tensors("quantise_rows", ("weight", weight, "Vr", FLOATS))
    rows = weight.float()
    largest = rows.abs().amax(-1)
    # Rows of zeros, or of values so small that the scale would underflow, keep scale 1.
    scale = torch.where(largest > _LARGEST * _TINIEST, largest / _LARGEST, 1.0)
    return (rows / scale[:, None]).clamp(-_LARGEST, _LARGEST).to(FP8), scale


def restore_rows(rows: Tensor, scale: Tensor) -> Tensor:
    """Dequantise the output of :func:`quantise_rows` to (V, r) fp32."""
    return rows.float() * scale[:, None]
