"""Greedy verification: the longest path of the target's own choices, and the next choice after it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.target_choice import target_choice
from ...ops.tree_verify import tree_verify
from ..tree import DraftTree, Verifier
from .match import MATCH


def decide_greedy(tree: DraftTree, logits: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Accept the longest root path of tokens that are the target's argmax at their parents.

    All rows are verified, including idle ones, on the device with fixed shapes. The first of equal maxima and
    the first of equally long paths are taken.

    Args:
        logits: (B, N, V) of the target at each node.
        levels: number of levels below the root, which sets the path's length.

    Returns:
        Path (B, levels + 1), whose last accepted node is repeated as padding, and numbers (B, levels + 3): the
        accepted depth, the number of path nodes above the first whose logits have no maximum, and the
        target's own choice at each node of the path.
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


# For rows with penalties, whose distributions depend on the path; temperature 0 puts all weight on the best
# token.
GREEDY = Verifier(MATCH.walk, samples=False)
