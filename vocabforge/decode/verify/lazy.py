"""Lossless sampling with a draft distribution that is evaluated token by token (SLRS; Timor et al. 2025).

A child is accepted with min(1, p / psi), as with any draft distribution; otherwise the residual max(p - psi,
0) is sampled. This does not need psi for all tokens: a token drawn from p and kept with max(0, 1 - psi / p)
has the residual's distribution. A token whose psi is already known then competes with its residual, so psi is
evaluated at most once per token.
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
    """Run one step: return the accepted child and its token, or None and a token from the residual.

    A node without a child means that nothing was drawn; the residual is used then as well. ``weights`` (V,)
    are the target's at the node, up to a factor.

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
    """Return the error for a child that cannot have been drawn from its distribution."""
    return MismatchError(
        "a drafted token was not drawn from the distribution that came with it",
        got=got,
        expected=expected,
        remedy="report this: the proposer is wrong, and its output would not be lossless",
    )


def draw_residual(p: Weights, distribution: LazyDistribution, chance: Chance) -> int:
    """Draw a token from max(p - psi, 0), up to a factor; p (V,) sums to 1, ``distribution`` is psi."""
    tokens = np.flatnonzero(p)
    heights = p[tokens]  # at least the residual, and equal to it if psi is known
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
    if not heights.any():  # p equals psi; only rounding leads here
        heights = p[tokens]
    return int(tokens[chance.draw(heights)])


def _rest(p: float, distribution: LazyDistribution, token: int) -> float:
    return max(p - distribution.probability(int(token)), 0 * p)
