"""Greedy verification: the longest path of the target's own choices, and the next choice after it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops.target_choice import target_choice
from ...ops.tree_verify import tree_verify
from ..tree import DraftTree, Verifier
from .match import MATCH


class GreedyVerdicts(NamedTuple):
    """Result of greedy verification of B trees.

    Attributes:
        path: (B, levels + 1) int64 on the device; the last accepted node is repeated as padding.
        tokens: accepted tokens of each row, then the target's own, on the host.
        invalid: number of accepted nodes above the first whose logits have no maximum, -1 if all have one.
    """

    path: Tensor
    tokens: list[list[int]]
    invalid: list[int]


def verify_greedy(tree: DraftTree, logits: Tensor, levels: int) -> GreedyVerdicts:
    """Accept the longest root path of tokens that are the target's argmax at their parents.

    The target's next argmax follows it. All rows are verified, including idle ones, on the device with fixed
    shapes; one copy to the host gives the result. The first of equal maxima and the first of equally long
    paths are taken. ``logits`` (B, N, V) are the target's at each node; ``levels`` below the root set the
    path's length.
    """
    return read_greedy(*decide_greedy(tree, logits, levels))


def decide_greedy(tree: DraftTree, logits: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Return the device's half: path (B, levels + 1) and numbers (B, levels + 3) for :func:`read_greedy`.

    The numbers are the accepted depth, the number of path nodes above the first whose logits have no maximum,
    and the target's own choice at each node of the path.
    """
    choices, valid = target_choice(logits.flatten(0, 1))
    shape = tree.tokens.shape
    if shape[1] == 1:  # a root alone, as in plain decoding: fewer calls, which matters on a CPU
        own = choices.view(shape)
        path = torch.zeros_like(own).expand(-1, levels + 1)
        good = valid.view(shape).long() * (levels + 1)
        return path, torch.cat([path[:, :1], good, own.expand(-1, levels + 1)], 1)
    given = choices.view(shape), valid.view(shape)
    path, numbers = tree_verify(
        tree.tokens, tree.parents, tree.depths, tree.ancestors, *given, levels=levels, alive=tree.alive
    )
    return path, numbers


def read_greedy(path: Tensor, numbers: Tensor) -> GreedyVerdicts:
    """Run the host's half, with a single copy."""
    rows = numbers.tolist()
    levels = path.shape[1] - 1
    return GreedyVerdicts(
        path,
        [tokens[: count + 1] for count, _, *tokens in rows],
        [-1 if good > levels else good for _, good, *_ in rows],
    )


# For rows with penalties, whose distributions depend on the path; temperature 0 puts all weight on the best
# token.
GREEDY = Verifier(MATCH.walk, samples=False)
