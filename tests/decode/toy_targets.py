"""Targets of a handful of tokens, and random draft trees over them."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from vocabforge.decode.tree import DraftTree, build_tree


class Toy:
    """A target whose logits depend on everything before, with zeros, ties and near certainties among them."""

    def __init__(self, vocab: int, seed: int, kind: str) -> None:
        self.vocab, self.seed, self.kind = vocab, seed, kind

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
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
    return build_tree(torch.tensor(tokens), torch.tensor(parents), levels)


def paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Tokens from below the root to each node."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree.tokens)):
        found.append((*found[int(tree.parents[node])], int(tree.tokens[node])))
    return found


def tree_logits(toy: Toy, tree: DraftTree) -> Tensor:
    return torch.stack([toy.logits(path) for path in paths(tree)])
