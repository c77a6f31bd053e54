"""Lossless sampling if a node's children were drawn, without replacement, from a known distribution (B).

Leviathan et al. 2023 and Chen et al. 2023 for one child; the recursion over siblings is that of Jeon et al.
2024 (RSD) and Yang et al. 2024: after a rejection, the residual max(p - q, 0) applies to the next sibling,
which was drawn from q without the rejected token. q must be exactly the distribution of the draws, in the
same order, and no draw may be left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..sampling import Chance, Weights, target_weights
from ..tree import DraftDistribution, RowTree, Verifier, walk_down
from .lazy import choose_lazy, not_drawn
from .point import choose_point_mass


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
    distribution = row.distributions.get(node)
    if distribution is None or (isinstance(distribution, DraftDistribution) and not row.children[node]):
        return choose_point_mass(row, node, weights)
    if isinstance(distribution, DraftDistribution):
        return choose_drawn(row, node, weights, distribution)
    return choose_lazy(row, node, weights, distribution)


def choose_drawn(
    row: RowTree, node: int, weights: Weights, distribution: DraftDistribution
) -> tuple[int | None, int]:
    """Run one step: return the accepted child and its token, or None and a token from the last residual.

    The children are tried in the order in which they were drawn. ``weights`` (V,) are the target's, up to a
    factor; ``distribution`` is that of the first child, zero outside its ids. The residual covers all of V.

    Raises:
        MismatchError: a child cannot have been drawn from the distribution.
    """
    p = weights / weights.sum()
    q = distribution.weights / distribution.weights.sum()
    for child in row.children[node]:
        token = row.tokens[child]
        place = _place(distribution, q, token)
        if _accepts(p[token], q[place], row.chance):
            return child, token
        rest = _residual(p, q, distribution)
        if not rest.any():  # p equals q; only rounding leads here
            return child, token
        p = rest / rest.sum()
        q = _without(q, place)
    return None, row.chance.draw(p)


def _accepts(p: Any, q: Any, chance: Chance) -> bool:
    """Accept with probability min(1, p / q); never if p is 0."""
    return chance.happens(min(p, q), q)


def _residual(p: Weights, q: Weights, distribution: DraftDistribution) -> Weights:
    """Return max(p - q, 0) over all of V."""
    rest = p.copy()
    rest[distribution.ids] = np.maximum(p[distribution.ids] - q, 0 * q)
    return rest


def _without(q: Weights, place: int) -> Weights:
    """Return the distribution of the next draw; all zero after the last token of the support."""
    rest = q.copy()
    rest[place] = 0 * rest[place]
    return rest / rest.sum() if rest.any() else rest


def _place(distribution: DraftDistribution, q: Weights, token: int) -> int:
    place = int(np.searchsorted(distribution.ids, token))
    if place == len(distribution.ids) or distribution.ids[place] != token or not q[place] > 0:
        raise not_drawn(f"token {token}", "one of the distribution's tokens, each at most once")
    return place


RESIDUAL = Verifier(lambda row: walk_down(row, _choose))
