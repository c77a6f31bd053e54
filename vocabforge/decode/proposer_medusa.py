"""Medusa proposer: a tree over independent heads, grown by cumulative log-probability.

Each head's distribution is the same whatever the path, so all heads run at once and the tree is EAGLE-2's
growth over their sums of log-probabilities. (Medusa's own trees are fixed shapes found offline.)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core.errors import UsageError
from ..models.heads import DraftHead, DraftState
from ..models.medusa import MedusaDrafter
from .tree import DraftTree, TreeGrowth, TreeSettings


class MedusaProposer:
    """Drafts a tree from the target's last hidden state.

    Args:
        drafter: the trained heads.
        head: draft head that scores their states (full or restricted).
        settings: tree shape; one level a Medusa head at most.
        context: not used: there is no cache.

    Raises:
        UsageError: the tree is wider than the draft vocabulary, or deeper than there are heads.
    """

    reads: Literal["aux", "hidden"] = "hidden"
    aux_layers: tuple[int, ...] = ()

    def __init__(self, drafter: MedusaDrafter, head: DraftHead, settings: TreeSettings, context: int) -> None:
        settings.check_width(head.size)
        if settings.levels > drafter.config.medusa_heads:
            raise UsageError(
                "the draft tree is deeper than the drafter has Medusa heads",
                got=f"depth {settings.depth}, which takes {settings.levels} heads",
                expected=f"at most depth {drafter.config.medusa_heads - 1}",
                remedy="lower --depth",
            )
        self.drafter, self.head, self.settings = drafter, head, settings
        self.rows = 0
        weight = drafter.head_weight
        self._h = torch.zeros(1, drafter.config.hidden_size, dtype=weight.dtype, device=weight.device)

    def reserve(self, positions: int) -> None:
        """Nothing to reserve: there is no cache."""

    def reset(self) -> None:
        """Forget the last request."""
        self.rows = 0

    def advance(self, tokens: Tensor, features: Tensor, count: int) -> None:
        """Commit rows; only the last one's hidden state is kept.

        Args:
            tokens: (N,) int64, not read.
            features: (N, H) target hidden states after the final norm.
            count: rows that are real.
        """
        self.rows += count
        self._h = features[count - 1 : count]

    def propose(self, root_token: Tensor) -> DraftTree:
        """Grow the tree under the last committed token.

        Args:
            root_token: (1,) int64.
        """
        k, levels = self.settings.topk, self.settings.levels
        states = self.drafter.heads(self._h[0], levels)  # (levels, H)
        # All levels are one draft step: they are drafted at once, from the same token and state.
        fed = DraftState(0, root_token.expand(levels), self._h.expand(levels, -1))
        logprobs, ids = self.head.topk(self.drafter.read(states), k, fed)  # (levels, k)
        growth = TreeGrowth(self.settings)
        growth.seed(logprobs[0], ids[0])
        for level in range(1, levels):
            growth.grow(logprobs[level].expand(k, k), ids[level].expand(k, k))
        return growth.finish(root_token)
