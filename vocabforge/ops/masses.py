"""Exact, order-independent sums of weights.

A weight is an integer multiple of 2^-84, stored as two int64 halves of 42 bits. Sums of up to 2^20 weights of
at most 1 are exact, so every partition of a row gives the same bits. Weights below 2^-84 are dropped; the
largest weight of a distribution is 1, so a float64 sum would lose them as well. ``kernels/common/mass.cuh``
is the C++ version.
"""

from __future__ import annotations

from torch import Tensor

HALF = 42  # bits


def mass_parts(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Split fp32 weights in [0, 1] into (high, low) int64: high * 2^-42 + low * 2^-84."""
    scaled = weights.double() * 2.0**HALF
    high = scaled.floor()
    return high.long(), ((scaled - high) * 2.0**HALF).long()


def mass_value(high: Tensor, low: Tensor) -> Tensor:
    """Convert summed parts to float64, monotonically."""
    high, low = high + (low >> HALF), low & ((1 << HALF) - 1)
    return high.double() * 2.0**-HALF + low.double() * 2.0 ** (-2 * HALF)


def mass_heights(weights: Tensor) -> Tensor:
    """Compute cumulative sums (..., V) float64 over the last dimension of fp32 weights (..., V)."""
    high, low = mass_parts(weights)
    return mass_value(high.cumsum(-1), low.cumsum(-1))


def draw_by_height(weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw the first index whose cumulative sum exceeds ``uniform`` times the total (``SeededChance.draw``).

    ``uniform`` is at most 1 - 2^-53, so the product is below the total even after rounding: if any weight is
    positive, an index with positive weight is drawn.

    Args:
        weights: (..., V) fp32, 0 to 1.
        uniform: (...) float64 in [0, 1).

    Returns:
        (...) int64; the last index if all weights are 0.
    """
    heights = mass_heights(weights)
    place = (heights <= uniform[..., None] * heights[..., -1:]).sum(-1)
    return place.clamp(max=weights.shape[-1] - 1)
