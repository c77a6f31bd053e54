"""Random decisions of decoding: one stream a request, counter-based, a fresh number for every decision."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

# Weights of tokens, (V,) float64. Tests pass object arrays of Fraction instead: every operation on them works for both.
Weights = np.ndarray[Any, Any]


class Chance(Protocol):
    """Source of the random decisions, so that a test can walk all of them."""

    def happens(self, weight: Any, total: Any) -> bool:
        """True with probability weight / total (total above 0), from a fresh uniform number."""
        ...

    def draw(self, weights: Weights) -> int:
        """An index of weights (V,), at least one above 0, with probability weight / sum."""
        ...


class SeededChance:
    """Pseudo-random decisions (Philox); the same seed gives the same decisions, on every machine.

    Args:
        seed: 0 to 2**63 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._uniform = np.random.Generator(np.random.Philox(key=seed)).random

    def happens(self, weight: Any, total: Any) -> bool:
        return bool(self._uniform() * total < weight)

    def draw(self, weights: Weights) -> int:
        heights = weights.cumsum()
        # `right`: the first height above the number, so that a weight of 0 is never drawn.
        place = int(heights.searchsorted(self._uniform() * heights[-1], side="right"))
        return min(place, int(np.flatnonzero(weights)[-1]))  # the product may round up to the total
