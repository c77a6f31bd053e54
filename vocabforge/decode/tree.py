"""Draft trees: batched for B requests, and per request on the host for verification."""

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

    topk: int = 10  # children of a node, and nodes expanded per round
    depth: int = 5  # rounds after the root's expansion; the tree is depth + 1 levels deep
    total_nodes: int = 60  # nodes per verification, root included

    def __post_init__(self) -> None:
        if self.topk < 1 or self.depth < 0:
            raise UsageError(
                "the shape of the draft tree is invalid",
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
        """Number of levels below the root."""
        return self.depth + 1

    @property
    def history_size(self) -> int:
        """Number of drafted nodes, of which ``total_nodes - 1`` are kept."""
        return self.topk + self.depth * self.topk**2


@dataclass(frozen=True)
class DraftDistribution:
    """Exact distribution from which the children of a node were drawn in order, without replacement.

    ``ids`` (C,) are int64 and ascending; ``weights`` (C,) are float64, at least 0 and known up to a factor.
    """

    ids: np.ndarray
    weights: Weights


class LazyDistribution(Protocol):
    """Distribution from which a node's only child was drawn, if computing all of it would cost too much.

    Its probabilities may sum to less than 1; the rest is the probability that nothing was drawn. A node with
    such a distribution may have no child, and this also counts as a draw.
    """

    def probability(self, token: int) -> Any:
        """Return the exact probability that this token was drawn; 0 if it cannot be."""


Distribution = DraftDistribution | LazyDistribution


@dataclass(frozen=True)
class DraftTree:
    """B trees of N nodes. Node 0 is the root (the last committed token); parents precede children."""

    tokens: Tensor  # (B, N) int64
    parents: Tensor  # (B, N) int64; 0 for the root
    depths: Tensor  # (B, N) int64; 0 for the root
    ancestors: Tensor  # bool (B, N, N), ancestors[b, i, j]: j is i or an ancestor of i
    alive: Tensor | None = None  # bool (B, N), False for padding nodes; None: there are none
    chain: bool = False  # every node is the child of the previous one
    # For each row, node -> distribution of its children; None if drafts were not sampled.
    distributions: Sequence[Mapping[int, Distribution]] | None = None
    words: Tensor | None = None  # ``ancestors`` as bits, (B, N, W) int64, if already computed
    exits: Any = None  # ``ExitStates``, if drafting has already run a part of the target's pass

    def ancestor_words(self) -> Tensor:
        """Return the ancestors as bits for kernels, (B, N, W) int64.

        Bit j % 64 of word j // 64 is ancestors[..., j].
        """
        return bits_of(self.ancestors) if self.words is None else self.words

    def leaf_paths(self) -> list[list[list[int]]]:
        """Return the nodes of every path from the root to a leaf, for each row, on the host."""
        paths = []
        for parents, above in zip(self.parents.tolist(), self.ancestors):
            leaves = sorted(set(range(len(parents))) - set(parents[1:]))
            paths.append([above[leaf].nonzero()[:, 0].tolist() for leaf in leaves])
        return paths


def build_tree(tokens: Tensor, parents: Tensor, levels: int) -> DraftTree:
    """Build trees from tokens and parents (B, N), with at most ``levels`` levels below the root."""
    ancestors = ancestors_of(parents, levels)
    return DraftTree(tokens, parents, ancestors.sum(-1) - 1, ancestors)


def root_trees(roots: Tensor) -> DraftTree:
    """Return trees of the roots (B,) alone, without drafts."""
    tree = build_tree(roots[:, None], torch.zeros_like(roots[:, None]), 0)
    return replace(tree, chain=True)


Walk = tuple[list[int], list[int]]


@dataclass(frozen=True)
class RowTree:
    """The tree of one request, and the target's logits at its nodes."""

    tokens: Sequence[int]  # of the N nodes; node 0 is the root, the last committed token
    children: Sequence[Sequence[int]]  # in the order in which they are tried; without padding nodes
    logits: Tensor  # (N, V) of the target
    sampling: SamplingParams
    chance: Chance
    history: TokenHistory  # prompt and committed output, root included
    # Distribution of a node's children; without an entry, they are point masses.
    distributions: Mapping[int, Distribution] = field(default_factory=dict)


@dataclass(frozen=True)
class Verifier:
    """A method to verify one row."""

    # Returns the accepted nodes, root first, and as many tokens: those of the nodes below the root, then the
    # target's own.
    walk: Callable[[RowTree], Walk]
    lossless: bool = True  # the output has exactly the target's distribution
    samples: bool = True  # for temperatures above 0; otherwise for 0 only


def walk_down(row: RowTree, choose: Callable[[RowTree, int, list[int]], tuple[int | None, int]]) -> Walk:
    """Walk down from the root until ``choose`` returns None and the target's own token instead of a child.

    ``choose`` is called with the row, the node, and the draft tokens from below the root to the node.
    """
    node: int | None = 0
    nodes: list[int] = []
    tokens: list[int] = []
    while node is not None:
        nodes.append(node)
        node, token = choose(row, node, tokens)
        tokens.append(token)
    return nodes, tokens


def children_of(parents: Sequence[int], alive: Sequence[bool] | None) -> list[list[int]]:
    """Return the children of each node in index order, without padding nodes."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        if alive is None or alive[node]:
            children[parents[node]].append(node)
    return children
