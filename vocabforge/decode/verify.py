"""Verification: which path of the draft tree the target accepts, and the token that follows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .tree import DraftTree


@dataclass(frozen=True)
class Verdict:
    """Outcome of one verification.

    Attributes:
        path: (L,) int64 nodes from the root to the last accepted one, the last repeated up to the fixed L.
        accepted: accepted draft tokens, so path[: accepted + 1] is real.
        tokens: the accepted draft tokens and, last, the target's own: accepted + 1 of them.
    """

    path: Tensor
    accepted: int
    tokens: list[int]


def target_distribution(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) over the last dimension, in fp32; temperature above 0."""
    wide = logits.float()
    # The maximum goes first: a tiny temperature would otherwise make infinities, and those NaN.
    return ((wide - wide.amax(-1, keepdim=True)) / temperature).softmax(-1)


def verify_greedy(tree: DraftTree, logits: Tensor, levels: int) -> Verdict:
    """Longest root path of tokens that are the target's argmax at their parents; then its next argmax.

    Args:
        tree: N nodes.
        logits: (N, V) of the target at each node.
        levels: levels below the root, which fixes the path's length.
    """
    best = logits.argmax(-1)  # (N,), the first of equal maxima
    agrees = tree.tokens == best[tree.parents]
    agrees[0] = True
    alive = (~tree.ancestors | agrees).all(1)  # the node and all above it agree
    last = torch.where(alive, tree.depths, -1).argmax()
    path = _path_to(tree, last, levels)
    depth, *tokens = torch.cat(
        [tree.depths[last : last + 1], tree.tokens[path], best[last : last + 1]]
    ).tolist()
    return Verdict(path, depth, [*tokens[1 : depth + 1], tokens[-1]])


def _path_to(tree: DraftTree, node: Tensor, levels: int) -> Tensor:
    """(levels + 1,) nodes from the root to ``node``, ``node`` repeated at the end."""
    count = len(tree.tokens)
    rows = torch.arange(count, device=tree.tokens.device)
    on_path = torch.where(tree.ancestors[node], rows, count)  # parents precede children, so order is depth
    return torch.minimum(on_path.sort().values[: levels + 1], node)


class Chance(Protocol):
    """Source of the random decisions, so that a test can walk all of them."""

    def happens(self, probability: float) -> bool:
        """True with this probability, from a fresh uniform number."""
        ...

    def draw(self, probabilities: Tensor) -> int:
        """An index of (V,) probabilities that sum to 1."""
        ...


class SeededChance:
    """Pseudo-random decisions from a seed; the same seed gives the same output."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def happens(self, probability: float) -> bool:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64)) < probability

    def draw(self, probabilities: Tensor) -> int:
        return int(torch.multinomial(probabilities.cpu(), 1, generator=self._generator))


def verify_sampling(
    tree: DraftTree, logits: Tensor, levels: int, temperature: float, chance: Chance
) -> Verdict:
    """Lossless sampling for drafts that are a function of the context (point masses).

    Walk from the root: each child in order is accepted with the target's probability p(x), a fresh uniform
    for every decision; a rejected x leaves p and p is renormalised; when no child is left, the next token is
    drawn from what remains. (Leviathan et al. 2023 with q a point mass; SpecInfer's multi-step form for siblings.)

    Args:
        tree, logits, levels: as in :func:`verify_greedy`.
        temperature: above 0.
        chance: where decisions come from.
    """
    parents, drafted = tree.parents.tolist(), tree.tokens.tolist()
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    node, tokens = 0, []
    while True:
        p = target_distribution(logits[node], temperature).cpu().double()
        p /= p.sum()
        accepted = next((child for child in children[node] if _try(p, drafted[child], chance)), None)
        if accepted is None:
            tokens.append(chance.draw(p))
            break
        tokens.append(drafted[accepted])
        node = accepted
    last = torch.tensor(node, device=tree.tokens.device)
    return Verdict(_path_to(tree, last, levels), len(tokens) - 1, tokens)


def _try(p: Tensor, token: int, chance: Chance) -> bool:
    """Accept ``token`` with probability p[token]; otherwise remove it from ``p`` in place."""
    probability = float(p[token])
    rest = float(p.sum()) - probability
    if chance.happens(probability) or rest <= 0.0:  # nothing else is possible where rest is 0
        return True
    p[token] = 0.0
    p /= p.sum()
    return False
