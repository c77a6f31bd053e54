"""Targets of a handful of tokens, and random draft trees over them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vocabforge.decode.tree import DraftTree, build_tree


class Toy:
    """A target whose logits depend on everything before, with zeros, ties and near certainties among them."""

    def __init__(self, vocab: int, seed: int, kind: str) -> None:
        self.vocab, self.seed, self.kind = vocab, seed, kind
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        """(V,) after a prefix."""
        if prefix not in self._known:
            self._known[prefix] = self._draw(prefix)
        return self._known[prefix]

    def _draw(self, prefix: tuple[int, ...]) -> Tensor:
        draw = random.Random(f"{self.seed} {prefix}")
        values = [
            draw.choice([0.0, 0.5, 1.0, 2.0]) if self.kind == "ties" else draw.gauss(0, 1.5)
            for _ in range(self.vocab)
        ]
        if self.kind == "zeros":
            for token in draw.sample(range(self.vocab), draw.randint(1, self.vocab - 1)):
                values[token] = float("-inf")
        return torch.tensor(values)


def random_tree(seed: int, vocab: int, nodes: int, levels: int, *, duplicates: bool = False) -> DraftTree:
    """One tree of at most ``nodes`` nodes, a batch of its own."""
    draw = random.Random(seed)
    tokens, parents, depths, taken = [0], [0], [0], set()
    while len(tokens) < nodes:
        parent = draw.choice([n for n in range(len(tokens)) if depths[n] < levels])
        token = draw.randrange(vocab)
        if (parent, token) in taken and not duplicates:
            if len(taken) == sum(depth < levels for depth in depths) * vocab:
                break
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return build_tree(torch.tensor([tokens]), torch.tensor([parents]), levels)


def batch_of(trees: Sequence[DraftTree], levels: int) -> DraftTree:
    """Trees of one row each side by side, padded with dead children of the root."""
    count = max(tree.tokens.shape[1] for tree in trees)

    def padded(name: str) -> Tensor:
        rows = [getattr(tree, name)[0].tolist() for tree in trees]
        return torch.tensor([row + [0] * (count - len(row)) for row in rows])

    alive = torch.tensor(
        [[node < tree.tokens.shape[1] for node in range(count)] for tree in trees], dtype=torch.bool
    )
    return replace(build_tree(padded("tokens"), padded("parents"), levels), alive=alive)


def paths(tree: DraftTree, row: int = 0) -> list[tuple[int, ...]]:
    """Tokens from below the root to each node of a row."""
    found: list[tuple[int, ...]] = [()]
    tokens, parents = tree.tokens[row].tolist(), tree.parents[row].tolist()
    for token, parent in list(zip(tokens, parents))[1:]:
        found.append((*found[parent], token))
    return found


def tree_logits(toy: Toy, tree: DraftTree, row: int = 0) -> Tensor:
    """(N, V) of the target on the nodes of a row."""
    return torch.stack([toy.logits(path) for path in paths(tree, row)])
