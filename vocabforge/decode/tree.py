"""Draft trees: of B requests side by side, and of one request on the host, as verification walks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UsageError
from ..ops.trees import ancestors_of, bits_of
from .request import SamplingParams
from .sampling import Chance, TokenHistory, Weights


@dataclass(frozen=True)
class TreeSettings:
    """Shape of the draft tree."""

    topk: int = 10  # children of a node, and nodes expanded in a round
    depth: int = 5  # rounds after the root's expansion; the tree is depth + 1 levels deep
    total_nodes: int = 60  # nodes that one verification checks, root included

    def __post_init__(self) -> None:
        if self.topk < 1 or self.depth < 0:
            raise UsageError(
                "the draft tree has no shape",
                got=f"topk {self.topk}, depth {self.depth}",
                expected="topk >= 1, depth >= 0",
            )
        if not self.levels < self.total_nodes <= self.history_size + 1:
            raise UsageError(
                "the draft tree's node count does not fit its depth and width",
                got=f"{self.total_nodes} nodes",
                expected=f"{self.levels + 1} to {self.history_size + 1} "
                f"for topk {self.topk} and depth {self.depth}",
                remedy="change --total-nodes, --depth or --topk",
            )

    @property
    def levels(self) -> int:
        """Levels below the root."""
        return self.depth + 1

    @property
    def history_size(self) -> int:
        """Nodes that drafting makes, of which ``total_nodes - 1`` are kept."""
        return self.topk + self.depth * self.topk**2


@dataclass(frozen=True)
class DraftDistribution:
    """The distribution that the children of one node were drawn from, without replacement, in their order: ``ids``
    (C,) int64 ascending and ``weights`` (C,) float64, 0 or above, up to a factor. Exactly what was drawn from."""

    ids: np.ndarray
    weights: Weights


class LazyDistribution(Protocol):
    """The distribution that one node's only child was drawn from, where naming all of it would cost too much.

    What it leaves to 1 is the probability that nothing was drawn: a node with such a distribution may have no child,
    and that was a draw, too.
    """

    def probability(self, token: int) -> Any:
        """Exactly the probability that this token was drawn; 0 for those that cannot be."""


Distribution = DraftDistribution | LazyDistribution


@dataclass(frozen=True)
class DraftTree:
    """B trees of N nodes. Node 0 is the root (the last committed token); parents precede children."""

    tokens: Tensor  # (B, N) int64
    parents: Tensor  # (B, N) int64, the root's is 0
    depths: Tensor  # (B, N) int64, the root's is 0
    ancestors: Tensor  # bool (B, N, N), ancestors[b, i, j]: j is i or above it
    alive: Tensor | None = None  # bool (B, N), False if a node only pads a smaller tree; None: all are alive
    chain: bool = False  # every node is the child of the one before it
    # For each row, node -> distribution of its children; None if drafts are a function of the context.
    distributions: Sequence[Mapping[int, Distribution]] | None = None
    words: Tensor | None = None  # ``ancestors`` as bits, (B, N, W) int64, if they are known already
    exits: Any = None  # ``ExitStates``, if drafting has run a part of the target's own pass over it

    def ancestor_words(self) -> Tensor:
        """The ancestors as bits, for kernels: (B, N, W) int64, bit j % 64 of word j // 64 is ancestors[..., j]."""
        return bits_of(self.ancestors) if self.words is None else self.words

    def leaf_paths(self) -> list[list[list[int]]]:
        """For each row, the nodes of each path from the root to a leaf, on the host."""
        found = []
        for parents, above in zip(self.parents.tolist(), self.ancestors):
            leaves = sorted(set(range(len(parents))) - set(parents[1:]))
            found.append([above[leaf].nonzero()[:, 0].tolist() for leaf in leaves])
        return found


def build_tree(tokens: Tensor, parents: Tensor, levels: int) -> DraftTree:
    """Depths and ancestors of trees given by tokens and parents (B, N); at most ``levels`` levels below the root."""
    ancestors = ancestors_of(parents, levels)
    return DraftTree(tokens, parents, ancestors.sum(-1) - 1, ancestors)


def root_trees(roots: Tensor) -> DraftTree:
    """The roots (B,) alone: nothing is drafted."""
    tree = build_tree(roots[:, None], torch.zeros_like(roots[:, None]), 0)
    return replace(tree, chain=True)


Walk = tuple[list[int], list[int]]


@dataclass(frozen=True)
class RowTree:
    """A tree of one request, and the target's logits on it."""

    tokens: Sequence[int]  # of the N nodes; node 0 is the root, the last committed token
    children: Sequence[Sequence[int]]  # in the order in which they are tried; nodes that only pad are in none
    logits: Tensor  # (N, V) of the target
    sampling: SamplingParams
    chance: Chance
    history: TokenHistory  # prompt and committed output, the root included
    # Of a node's children; point masses without one.
    distributions: Mapping[int, Distribution] = field(default_factory=dict)


@dataclass(frozen=True)
class Verifier:
    """A way to verify one row.

    ``walk`` gives the accepted nodes, the root first, and as many tokens: those of the nodes below the root and, last,
    the target's own. ``lossless``: the output has exactly the target's distribution. ``samples``: it is for
    temperatures above 0; else for 0 alone.
    """

    walk: Callable[[RowTree], Walk]
    lossless: bool = True
    samples: bool = True


def walk_down(row: RowTree, choose: Callable[[RowTree, int, list[int]], tuple[int | None, int]]) -> Walk:
    """From the root on, ``choose`` a child, or None and the target's own token, until it is the latter; it is given the
    row, the node, and the draft tokens from below the root to the node."""
    node: int | None = 0
    nodes: list[int] = []
    tokens: list[int] = []
    while node is not None:
        nodes.append(node)
        node, token = choose(row, node, tokens)
        tokens.append(token)
    return nodes, tokens


def children_of(parents: Sequence[int], alive: Sequence[bool] | None) -> list[list[int]]:
    """For each node its children, in index order, without dead ones."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        if alive is None or alive[node]:
            children[parents[node]].append(node)
    return children
