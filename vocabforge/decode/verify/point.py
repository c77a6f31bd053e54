"""Lossless sampling if drafts are a function of the context: each draft token is a point mass (A).

Leviathan et al. 2023 with a point mass as the draft distribution; siblings as in SpecInfer's multi-step form
(Miao et al. 2024). It works for any tree and any head: the drafts only affect the speed. This also holds for
children that were drawn at random, as long as the draws are independent of the decisions here.
"""

from __future__ import annotations

from ..sampling import Chance, Weights, target_weights
from ..tree import RowTree, Verifier, walk_down


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
    return choose_point_mass(row, node, weights)


def choose_point_mass(row: RowTree, node: int, weights: Weights) -> tuple[int | None, int]:
    """Run one step: return the accepted child and its token, or None and a token from the remaining weights.

    The node's children are tried in order, each with a fresh uniform number; ``weights`` (V,), the target's
    up to a factor, are changed in place.
    """
    for child in row.children[node]:
        token = row.tokens[child]
        if _accepts(weights, token, row.chance):
            return child, token
    return None, row.chance.draw(weights)


def _accepts(weights: Weights, token: int, chance: Chance) -> bool:
    """Accept ``token`` with its share of the weights; otherwise set its weight to 0."""
    weight = weights[token]
    if chance.happens(weight, weights.sum()):
        return True
    weights[token] = 0 * weight  # keeps fractions exact
    if weights.any():
        return False
    weights[token] = weight  # nothing else is possible; only rounding leads here
    return True


POINT = Verifier(lambda row: walk_down(row, _choose))
