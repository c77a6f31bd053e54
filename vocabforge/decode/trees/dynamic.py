"""The dynamic draft tree of EAGLE-2 (Li et al. 2024) with static shapes, for B requests in parallel.

Scores are cumulative fp32 log-probabilities. All sorting is stable and by (score, index), so that a child
whose log-probability rounds to 0 never displaces its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.heads.registry import DraftHead, DraftState
from ...ops.tree_expand import tree_expand
from ...ops.tree_select import tree_select
from ...ops.trees import bits_of
from ..interface import Draw, Frontier, Growth, Plan, shallower_plans
from ..tree import DraftTree, TreeSettings


class DynamicPolicy:
    """Policy for trees that grow from the drafter's most confident nodes."""

    samples = False

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self.plan = Plan(settings.levels, settings.total_nodes)
        self.scratch = settings.depth * settings.topk
        self.width = self.broadest = settings.topk

    def plans(self) -> list[Plan]:
        """Return trees of fewer levels, with a proportional number of nodes."""
        k, plans = self.settings.topk, shallower_plans(self.plan)
        return [plan for plan in plans if plan.nodes <= k + (plan.levels - 1) * k**2 + 1]

    def grow(self, rows: int, plan: Plan, draws: Sequence[Draw] | None, bits: bool = False) -> Growth:
        return DynamicGrowth(TreeSettings(self.settings.topk, plan.levels - 1, plan.nodes), bits)


class _Start(NamedTuple):
    """Tensors of the root's expansion, which do not depend on the text."""

    expanded: Tensor  # (B, 1 + k) indices of the root and its children in the history
    parents: Tensor  # (B, k) indices of the children's parents in the frontier
    words: Tensor  # (B, k, words) bits of the children


@cache
def _start(rows: int, settings: TreeSettings, device: torch.device) -> _Start:
    """Make the tensors once; a captured pass would make them in every replay."""
    with torch.inference_mode(False):  # usable in both modes
        k = settings.topk
        own = torch.eye(k, max(settings.depth, 1) * k, dtype=torch.bool, device=device)
        parents = torch.zeros(rows, k, dtype=torch.int64, device=device)
        expanded = torch.arange(-1, k, device=device).repeat(rows, 1)
        return _Start(expanded, parents, bits_of(own).repeat(rows, 1, 1))


class DynamicGrowth:
    """History of one draft: the nodes proposed so far, and those expanded next.

    The root's expansion gives ``topk`` children. Each further round expands the best ``topk`` frontier nodes
    into ``topk`` children each; finally, the best ``total_nodes - 1`` nodes of the history are kept below the
    root. With ``bits``, frontiers and the tree have words.
    """

    def __init__(self, settings: TreeSettings, bits: bool = False) -> None:
        self.settings, self._bits = settings, bits
        self._tokens: list[Tensor] = []  # each (B, n)
        self._scores: list[Tensor] = []
        self._expanded: list[Tensor] = []  # indices in the history
        self._rounds = 0
        self._words: Tensor | None = None  # of the last frontier

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        """Add children of the frontier states ``hidden`` (B, W, H); W is 1 at the root, then ``topk``."""
        k, batch = self.settings.topk, hidden.shape[0]
        logprobs, ids = head.topk(hidden.flatten(0, 1), k, state)  # (B * W, k)
        if self._rounds == 0:
            make = _start.__wrapped__ if torch.compiler.is_compiling() else _start  # cannot trace a cache
            start = make(batch, self.settings, ids.device)
            self._tokens, self._scores, self._expanded = [ids], [logprobs], [start.expanded]
            self._best, frontier = logprobs, Frontier(ids, start.parents, start.words)  # (B, k)
        else:
            logprobs, ids = logprobs.unflatten(0, (batch, k)), ids.unflatten(0, (batch, k))  # (B, k, k)
            self._tokens.append(ids.flatten(1))
            if self._rounds == self.settings.depth:  # the last level is not expanded
                self._scores.append((self._best[:, :, None] + logprobs).flatten(1))
                return None
            used = self._rounds * k
            grown = tree_expand(
                self._best,
                logprobs,
                ids,
                keep=k,
                first=k + (used - k) * k,
                above=self._words if self._bits else None,
                slot=used,
            )
            self._scores.append(grown.cumulative)
            self._expanded.append(grown.places)
            self._best, frontier = grown.best_scores, Frontier(grown.tokens, grown.parents, grown.words)
        self._rounds += 1
        self._words = frontier.words
        return None if self._rounds > self.settings.depth else frontier

    def finish(self, roots: Tensor) -> DraftTree:
        """Return the best ``total_nodes - 1`` nodes of the history below each root (B,)."""
        if not self.settings.depth:  # only the root was expanded
            self._expanded = [self._expanded[0][:, :1]]
        tokens, scores, expanded = (
            torch.cat(part, 1) for part in (self._tokens, self._scores, self._expanded)
        )
        nodes, levels = self.settings.total_nodes, self.settings.levels
        tree = tree_select(roots, tokens, scores, expanded, nodes=nodes, levels=levels)
        words = tree.words if self._bits else None
        return DraftTree(tree.tokens, tree.parents, tree.depths, tree.ancestors, words=words)
