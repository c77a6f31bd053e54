"""One request's draft tree on the host, as the walks of verification see it, and what such a walk is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from .chance import Chance
from .request import SamplingParams
from .sampling import TokenHistory
from .tree import Law

Walk = tuple[list[int], list[int]]


@dataclass(frozen=True)
class RowTree:
    """A tree and the target's logits on it.

    Attributes:
        tokens: of the N nodes; node 0 is the root, the last committed token.
        children: of each node, in the order in which they are tried; nodes that only pad are in none.
        logits: (N, V) of the target, where the model left them.
        sampling, chance: the request's settings and random stream.
        history: prompt and committed output, the root included.
        laws: node -> the law that its children were drawn from; a node without one has point masses.
    """

    tokens: Sequence[int]
    children: Sequence[Sequence[int]]
    logits: Tensor
    sampling: SamplingParams
    chance: Chance
    history: TokenHistory
    laws: Mapping[int, Law] = field(default_factory=dict)


@dataclass(frozen=True)
class Verifier:
    """A way to verify one row.

    Attributes:
        walk: from a tree to the accepted nodes, the root first, and as many tokens: those of the nodes below the
            root and, last, the target's own.
        lossless: the output has exactly the law that the target alone would give it.
        samples: it is for temperatures above 0; else for 0 alone.
    """

    walk: Callable[[RowTree], Walk]
    lossless: bool = True
    samples: bool = True


def walk_down(row: RowTree, choose: Callable[[RowTree, int, list[int]], tuple[int | None, int]]) -> Walk:
    """From the root on, ``choose`` a child, or None and the target's own token, until it is the latter.

    Args:
        choose: called with the row, the node, and the draft tokens from below the root to the node.
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
    """For each node its children, in index order, without dead ones."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        if alive is None or alive[node]:
            children[parents[node]].append(node)
    return children
