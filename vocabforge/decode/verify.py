"""Greedy verification: the longest path of the target's own choices, and the choice that follows it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .row_tree import RowTree, Verifier, Walk, walk_down
from .sampling import target_weights
from .tree import DraftTree


class GreedyVerdicts(NamedTuple):
    """Of B trees: ``path`` (B, levels + 1) int64 on the device, the last accepted node repeated, and on the host
    ``tokens``, the accepted ones and the target's own, and ``lawless``: how many accepted nodes stand above the
    first whose logits hold no largest number, -1 where all have one."""

    path: Tensor
    tokens: list[list[int]]
    lawless: list[int]


def verify_greedy(tree: DraftTree, logits: Tensor, levels: int) -> GreedyVerdicts:
    """Longest root path of tokens that are the target's argmax at their parents; then its next argmax.

    Every row is verified, idle ones too. Everything runs on the device in fixed shapes, and one copy to the host
    gives the outcome. Of equal maxima the first counts, of equally long paths the first.

    Args:
        tree: B trees of N nodes.
        logits: (B, N, V) of the target at each node.
        levels: levels below the root, which fixes the path's length.
    """
    return read_greedy(*decide_greedy(tree, logits, levels))


def decide_greedy(tree: DraftTree, logits: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The device's half: path (B, levels + 1), and numbers (B, levels + 3) for :func:`read_greedy`.

    Numbers: the accepted depth, the nodes of the path above the first whose logits hold no largest number, and the
    target's own choice at each node of the path.
    """
    highest, best = logits.max(-1)  # (B, N), the first of equal maxima; NaN is the largest
    lawful = highest > -torch.inf
    if tree.tokens.shape[1] == 1:
        path = torch.zeros_like(best).expand(-1, levels + 1)
        depth = torch.zeros_like(best)
    else:
        path, depth = _longest(tree, best, levels)
    above = lawful.gather(1, path).long().cumprod(1).sum(1, keepdim=True)
    return path, torch.cat([depth, above, best.gather(1, path)], 1)


def read_greedy(path: Tensor, numbers: Tensor) -> GreedyVerdicts:
    """The host's half, with the one copy."""
    rows = numbers.tolist()
    levels = path.shape[1] - 1
    return GreedyVerdicts(
        path,
        [tokens[: count + 1] for count, _, *tokens in rows],
        [-1 if good > levels else good for _, good, *_ in rows],
    )


def _longest(tree: DraftTree, best: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The accepted path (B, levels + 1), its last node repeated, and that node's depth (B, 1)."""
    agrees = tree.tokens == best.gather(1, tree.parents)  # (B, N)
    agrees[:, 0] = True
    if tree.alive is not None:
        agrees &= tree.alive
    accepted = (~tree.ancestors | agrees[:, None, :]).all(-1)  # the node and all above it agree
    depth, last = torch.where(accepted, tree.depths, -1).max(-1, keepdim=True)  # (B, 1)
    nodes = torch.arange(tree.tokens.shape[1], device=last.device)
    above = tree.ancestors.gather(1, last[:, :, None].expand(-1, -1, len(nodes)))[:, 0]  # (B, N)
    # Each node above goes to the place of its depth; the others to one place more, which is cut off.
    places = torch.where(above, tree.depths, levels + 1)
    path = last.repeat(1, levels + 2).scatter(1, places, nodes.expand_as(places))
    return path[:, :-1], depth


def walk_greedy(row: RowTree) -> Walk:
    """The same for one row whose laws depend on the path (penalties); of equal siblings the first is taken."""
    return walk_down(row, _choose)


def _choose(row: RowTree, node: int, path_tokens: list[int]) -> tuple[int | None, int]:
    best = int(target_weights(row.logits[node], row.sampling, row.history, path_tokens).argmax())
    return next((child for child in row.children[node] if row.tokens[child] == best), None), best


GREEDY = Verifier(walk_greedy, samples=False)
