"""The dynamic draft tree of EAGLE-2 (Li et al. 2024), in static shapes, for B requests side by side.

Scores are cumulative fp32 log-probabilities. Everything is ordered by (score, index), stable, so that a child
whose log-probability rounds to 0 never displaces its parent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...models.heads.registry import DraftHead, DraftState
from ...ops.tree_expand import tree_expand
from ...ops.tree_select import tree_select
from ..proposers.interface import Draw, Frontier, Growth, Plan, shallower_plans
from ..tree import DraftTree, TreeSettings


class DynamicPolicy:
    """Trees that grow where the drafter is sure."""

    samples = False

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self.plan = Plan(settings.levels, settings.total_nodes)
        self.scratch = settings.depth * settings.topk
        self.width = self.broadest = settings.topk

    def plans(self) -> list[Plan]:
        """Trees of fewer levels, with nodes in proportion."""
        return [plan for plan in shallower_plans(self.plan) if self._fits(plan)]

    def _fits(self, plan: Plan) -> bool:
        return plan.nodes <= self.settings.topk + (plan.levels - 1) * self.settings.topk**2 + 1

    def grow(self, rows: int, plan: Plan, draws: Sequence[Draw] | None) -> Growth:
        return DynamicGrowth(TreeSettings(self.settings.topk, plan.levels - 1, plan.nodes))


class DynamicGrowth:
    """The history of one drafting: what was proposed, and which nodes are expanded next.

    The root's expansion gives ``topk`` children. Each further round expands the ``topk`` best frontier nodes by
    ``topk``; at last the best ``total_nodes - 1`` nodes of the history are kept under the root.
    """

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self._tokens: list[Tensor] = []  # each (B, n)
        self._scores: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._size = 0
        self._rounds = 0

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        """Children of the frontier whose states are ``hidden`` (B, W, H), W = 1 at the root, else ``topk``."""
        k, batch = self.settings.topk, hidden.shape[0]
        logprobs, ids = head.topk(hidden.flatten(0, 1), k, state)  # (B * W, k)
        if self._rounds == 0:
            scores, tokens = logprobs, ids  # (B, k)
            self._record(tokens, scores, torch.full_like(ids, -1))
            self._index = torch.arange(k, device=ids.device).expand(batch, -1)
            self._frontier_scores, parents = scores, torch.zeros_like(ids)
        else:
            logprobs, ids = logprobs.unflatten(0, (batch, k)), ids.unflatten(0, (batch, k))  # (B, k, k)
            index, first = self._index.repeat_interleave(k, 1), self._size
            if self._rounds == self.settings.depth:  # none of them is expanded
                self._record(ids.flatten(1), (self._frontier_scores[:, :, None] + logprobs).flatten(1), index)
                return None
            grown = tree_expand(self._frontier_scores, logprobs, ids, keep=k)
            self._record(ids.flatten(1), grown.cumulative, index)
            self._frontier_scores, tokens, parents = grown.best_scores, grown.tokens, grown.parents
            self._index = first + grown.places
        self._rounds += 1
        return None if self._rounds > self.settings.depth else Frontier(tokens, parents)

    def _record(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)
        self._size += tokens.shape[1]

    def finish(self, roots: Tensor) -> DraftTree:
        """The best ``total_nodes - 1`` nodes of the history under each root (B,)."""
        tokens, scores, parents = (torch.cat(part, 1) for part in (self._tokens, self._scores, self._parents))
        nodes, levels = self.settings.total_nodes, self.settings.levels
        tree = tree_select(roots, tokens, scores, parents, nodes=nodes, levels=levels)
        words = tree.words if tokens.is_cuda else None  # for kernels
        return DraftTree(tree.tokens, tree.parents, tree.depths, tree.ancestors, words=words)
