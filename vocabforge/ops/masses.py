"""Sums of weights that are the same in any order.

A weight is an integer multiple of 2^-84, in two int64 halves of 42 bits, so that sums are exact as long as no weight is
above 1 and there are at most 2^20: however a kernel cuts a row, it gets the same bits. What is below 2^-84 counts
nothing; the largest weight of a distribution is 1, and a float64 sum would lose it, too. ``kernels/common/mass.cuh`` is
the same in C++.
"""

from __future__ import annotations

from torch import Tensor

HALF = 42  # bits


def mass_parts(weights: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 weights, 0 to 1, as (high, low) int64: high * 2^-42 + low * 2^-84."""
    scaled = weights.double() * 2.0**HALF
    high = scaled.floor()
    return high.long(), ((scaled - high) * 2.0**HALF).long()


def mass_value(high: Tensor, low: Tensor) -> Tensor:
    """Sums of parts as float64; never smaller for a larger sum."""
    high, low = high + (low >> HALF), low & ((1 << HALF) - 1)
    return high.double() * 2.0**-HALF + low.double() * 2.0 ** (-2 * HALF)


def mass_heights(weights: Tensor) -> Tensor:
    """Cumulative sums over the last dimension of fp32 weights (..., V): (..., V) float64."""
    high, low = mass_parts(weights)
    return mass_value(high.cumsum(-1), low.cumsum(-1))


def draw_by_height(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first place whose height is above ``uniform`` times the whole, as ``SeededChance.draw`` takes it.

    The product is below the whole, rounded, too, since ``uniform`` is at most 1 - 2^-53: a place of weight above 0 is
    found wherever there is one.

    Args:
        weights: (..., V) fp32, 0 to 1.
        uniform: (...) float64 in [0, 1).

    Returns:
        (...) int64; the last place where all weights are 0.
    """
    heights = mass_heights(weights)
    place = (heights <= uniform[..., None] * heights[..., -1:]).sum(-1)
    return place.clamp(max=weights.shape[-1] - 1)
