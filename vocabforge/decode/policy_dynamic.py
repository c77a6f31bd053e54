"""The dynamic draft tree of EAGLE-2 (Li et al. 2024), in static shapes, for B requests side by side.

Scores are cumulative fp32 log-probabilities. Everything is ordered by (score, index), stable, so that a child
whose log-probability rounds to 0 never displaces its parent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..models.heads import DraftHead, DraftState
from .draft import Draw, Frontier, Growth, Plan
from .tree import DraftTree, TreeSettings, build_tree


class DynamicPolicy:
    """Trees that grow where the drafter is sure.

    Args:
        settings: width, depth and number of nodes.
    """

    samples = False

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self.plan = Plan(settings.levels, settings.total_nodes)
        self.scratch = settings.depth * settings.topk
        self.width = settings.topk

    def plans(self) -> list[Plan]:
        """Trees of fewer levels, with nodes in proportion."""
        full = self.plan
        sizes = [Plan(n, max(n + 1, full.nodes * n // full.levels)) for n in range(1, full.levels)]
        return [*(plan for plan in sizes if self._fits(plan)), full]

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
            frontier = tokens
        else:
            scores = (self._frontier_scores[:, :, None] + logprobs.unflatten(0, (batch, k))).flatten(1)
            tokens = ids.unflatten(0, (batch, k)).flatten(1)  # (B, k * k)
            first = self._size
            self._record(tokens, scores, self._index.repeat_interleave(k, 1))
            if self._rounds == self.settings.depth:
                return None
            self._frontier_scores, best = _stable_top(scores, k)
            frontier, parents = tokens.gather(1, best), best // k
            self._index = first + best
        self._rounds += 1
        return None if self._rounds > self.settings.depth else Frontier(frontier, parents)

    def _record(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)
        self._size += tokens.shape[1]

    def finish(self, roots: Tensor) -> DraftTree:
        """The best ``total_nodes - 1`` nodes of the history under each root (B,)."""
        tokens, scores, parents = (torch.cat(part, 1) for part in (self._tokens, self._scores, self._parents))
        keep, batch = self.settings.total_nodes - 1, len(roots)
        chosen = _stable_top(scores, keep)[1].sort(1).values  # history order: parents before children
        place = torch.full((batch, self._size + 1), -1, dtype=torch.int64, device=tokens.device)
        place.scatter_(1, chosen, torch.arange(1, keep + 1, device=tokens.device).expand(batch, -1))
        place[:, -1] = 0  # the history's -1 is the root
        above = parents.gather(1, chosen)
        above = place.gather(1, torch.where(above < 0, self._size, above))
        if (
            above.device.type == "cpu" and not torch.compiler.is_compiling()
        ):  # elsewhere it would stop the stream
            assert int(above.min()) >= 0, "a draft node was kept without its parent"
        return build_tree(
            torch.cat([roots[:, None], tokens.gather(1, chosen)], 1),
            torch.cat([torch.zeros_like(above[:, :1]), above], 1),
            self.settings.levels,
        )


def _stable_top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of scores (B, n), ties to the lower index."""
    values, order = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :k], order[:, :k]
