"""Lossless sampling where drafts are a function of the context: each draft token is a point mass (A).

Leviathan et al. 2023 with a point mass as the draft distribution; for siblings in SpecInfer's multi-step form
(Miao et al. 2024). Any tree and any head: what was drafted, and how often, changes the speed alone. That holds for
children that were drawn at random too, as long as the draws have nothing to do with the decisions here.
"""

from __future__ import annotations

from ..sampling import Chance, Weights, target_weights
from ..tree import RowTree, Verifier, walk_down


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    weights = target_weights(row.logits[node], row.sampling, row.history, path_tokens)
    return choose_point_mass(row, node, weights)


def choose_point_mass(row: RowTree, node: int, weights: Weights) -> tuple[int | None, int]:
    """One step: the accepted child and its token, or None and a token drawn from what remains.

    The node's children are tried in order, a fresh uniform number for each; ``weights`` (V,), the target's up to a
    factor, are changed in place.
    """
    for child in row.children[node]:
        token = row.tokens[child]
        if _accepts(weights, token, row.chance):
            return child, token
    return None, row.chance.draw(weights)


def _accepts(weights: Weights, token: int, chance: Chance) -> bool:
    """Accept ``token`` with its share of the weights; otherwise take it out of them."""
    weight = weights[token]
    if chance.happens(weight, weights.sum()):
        return True
    weights[token] = 0 * weight  # a fraction stays a fraction
    if weights.any():
        return False
    weights[token] = weight  # nothing else is possible: only rounding can lead here
    return True


POINT = Verifier(lambda row: walk_down(row, _choose))
