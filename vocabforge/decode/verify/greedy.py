"""Greedy verification: the longest path of the target's own choices, and the choice that follows it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...ops.target_choice import target_choice
from ...ops.tree_verify import tree_verify
from ..tree import DraftTree, Verifier
from .match import MATCH


class GreedyVerdicts(NamedTuple):
    """Of B trees: ``path`` (B, levels + 1) int64 on the device, the last accepted node repeated, and on the host
    ``tokens``, the accepted ones and the target's own, and ``invalid``: how many accepted nodes stand above the
    first whose logits hold no largest number, -1 where all have one."""

    path: Tensor
    tokens: list[list[int]]
    invalid: list[int]


def verify_greedy(tree: DraftTree, logits: Tensor, levels: int) -> GreedyVerdicts:
    """Longest root path of tokens that are the target's argmax at their parents; then its next argmax.

    Every row is verified, idle ones too, on the device in fixed shapes; one copy to the host gives the outcome. Of
    equal maxima the first counts, of equally long paths the first. ``logits`` (B, N, V) are the target's at each node;
    ``levels`` below the root fix the path's length.
    """
    return read_greedy(*decide_greedy(tree, logits, levels))


def decide_greedy(tree: DraftTree, logits: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The device's half: path (B, levels + 1), and numbers (B, levels + 3) for :func:`read_greedy`.

    Numbers: the accepted depth, the nodes of the path above the first whose logits hold no largest number, and the
    target's own choice at each node of the path.
    """
    choices, valid = target_choice(logits.flatten(0, 1))
    shape = tree.tokens.shape
    if shape[1] == 1:  # a root alone, as in plain decoding, where a CPU counts the calls
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
    """The host's half, with the one copy."""
    rows = numbers.tolist()
    levels = path.shape[1] - 1
    return GreedyVerdicts(
        path,
        [tokens[: count + 1] for count, _, *tokens in rows],
        [-1 if good > levels else good for _, good, *_ in rows],
    )


# For rows whose distributions depend on the path (penalties): at temperature 0 all weight is on the best token.
GREEDY = Verifier(MATCH.walk, samples=False)
