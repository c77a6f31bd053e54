"""Lossless sampling where a child was drawn from a distribution that is known token by token (SLRS; Timor et al. 2025).

As with any drawn child, it is accepted with min(1, p / psi), and else the residual max(p - psi, 0) is drawn from. That
is done without naming psi for all tokens: a token drawn from p and kept with max(0, 1 - psi / p) has the residual's
distribution. A token whose psi is known by then competes with what its residual is, so none is asked for twice.
"""

from __future__ import annotations

import numpy as np

from ...core.errors import MismatchError
from ..sampling import Chance, Weights
from ..tree import LazyDistribution, RowTree

LAZY_DRAWS = 1000  # draws from the residual before it is computed as a whole


def choose_lazy(
    row: RowTree, node: int, weights: Weights, distribution: LazyDistribution
) -> tuple[int | None, int]:
    """One step: the accepted child and its token, or None and a token of the residual.

    A node without a child is one where nothing was drawn: that takes the residual, too. ``weights`` (V,) are the
    target's at the node, up to a factor.

    Raises:
        MismatchError: the child cannot have been drawn from the distribution.
    """
    p = weights / weights.sum()
    for child in row.children[node][:1]:
        token = row.tokens[child]
        psi = distribution.probability(token)
        if not psi > 0:
            raise not_drawn(f"token {token} of probability {psi}", "a probability above 0")
        if row.chance.happens(min(p[token], psi), psi):
            return child, token
    return None, draw_residual(p, distribution, row.chance)


def not_drawn(got: str, expected: str) -> MismatchError:
    """The error for a child that its distribution cannot have given."""
    return MismatchError(
        "a drafted token was not drawn from the distribution that came with it",
        got=got,
        expected=expected,
        remedy="report this: the proposer is wrong, and its output would not be lossless",
    )


def draw_residual(p: Weights, distribution: LazyDistribution, chance: Chance) -> int:
    """A token drawn from max(p - psi, 0), up to its factor; p (V,) has sum 1, ``distribution`` is psi."""
    tokens = np.flatnonzero(p)
    heights = p[tokens]  # at or above the residual, and equal to it where psi is known
    unknown = set(range(len(tokens)))
    for _ in range(LAZY_DRAWS):
        if not heights.any():
            break
        place = chance.draw(heights)
        if place not in unknown:
            return int(tokens[place])
        unknown.remove(place)
        height = heights[place]
        heights[place] = _rest(height, distribution, tokens[place])
        if chance.happens(heights[place], height):
            return int(tokens[place])
    for place in unknown:
        heights[place] = _rest(heights[place], distribution, tokens[place])
    if not heights.any():  # p equals psi, so only rounding can lead here
        heights = p[tokens]
    return int(tokens[chance.draw(heights)])


def _rest(p: float, distribution: LazyDistribution, token: int) -> float:
    return max(p - distribution.probability(int(token)), 0 * p)
