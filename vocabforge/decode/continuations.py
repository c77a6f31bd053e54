"""Draft trees over whole continuations: token paths known on the host before any tree is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .tree import DraftTree, build_tree


def root_trees(roots: Tensor) -> DraftTree:
    """The roots (B,) alone: nothing is drafted."""
    tree = build_tree(roots[:, None], torch.zeros_like(roots[:, None]), 0)
    return replace(tree, chain=True)


def chain_trees(
    roots: Tensor, drafts: Sequence[Sequence[int]], length: int, *, masked: bool = False
) -> DraftTree:
    """Chains of ``length`` draft tokens under roots (B,); of a shorter draft only its own nodes are alive.

    Args:
        masked: say so where all are alive, too: compiled passes know one form.
    """
    rows = len(roots)
    padded = [[*draft, *[0] * (length - len(draft))] for draft in drafts]
    tokens = torch.cat([roots[:, None], torch.tensor(padded, dtype=torch.int64, device=roots.device)], 1)
    steps = torch.arange(length + 1, device=roots.device)
    alive: Tensor | None = None
    if masked or any(len(draft) < length for draft in drafts):
        alive = steps <= torch.tensor([[len(draft)] for draft in drafts], device=roots.device)
    return DraftTree(
        tokens,
        (steps - 1).clamp(min=0).expand(rows, -1),
        steps.expand(rows, -1),
        (steps <= steps[:, None]).expand(rows, -1, -1),
        alive=alive,
        chain=True,
    )


def merged_trees(
    roots: Tensor, branches: Sequence[Sequence[Sequence[int]]], levels: int, nodes: int
) -> DraftTree:
    """The continuations of each row merged at their common beginnings; rows padded to ``nodes``, root included."""
    merged = [_merge(found, nodes) for found in branches]
    tokens = torch.zeros(len(roots), nodes, dtype=torch.int64)
    parents = torch.zeros_like(tokens)
    for row, found in enumerate(merged):
        for node, (parent, token) in enumerate(found, 1):
            tokens[row, node], parents[row, node] = token, parent
    counts = torch.tensor([len(found) + 1 for found in merged], device=roots.device)
    tokens, parents = tokens.to(roots.device), parents.to(roots.device)
    tokens[:, 0] = roots
    tree = build_tree(tokens, parents, levels)
    return replace(tree, alive=torch.arange(nodes, device=roots.device) < counts[:, None])


def count_nodes(branches: Sequence[Sequence[int]], most: int) -> int:
    """Nodes of the tree over a row's continuations, root included."""
    return len(_merge(branches, most)) + 1


def _merge(branches: Sequence[Sequence[int]], most: int) -> list[tuple[int, int]]:
    """(parent, token) of the nodes 1, 2, ... of a tree over token paths, at most ``most`` with the root."""
    places: dict[tuple[int, int], int] = {}
    for branch in branches:
        node = 0
        for token in branch:
            if (node, token) not in places:
                if len(places) + 1 == most:
                    return list(places)
                places[node, token] = len(places) + 1
            node = places[node, token]
    return list(places)
