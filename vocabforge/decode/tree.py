"""The dynamic draft tree of EAGLE-2 (Li et al. 2024), in static shapes.

Scores are cumulative fp32 log-probabilities. Everything is ordered by (score, index), stable, so that a child
whose log-probability rounds to 0 never displaces its parent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import UsageError


@dataclass(frozen=True)
class TreeSettings:
    """Shape of the draft tree.

    Attributes:
        topk: children of a node, and nodes expanded in a round.
        depth: rounds after the root's expansion; the tree is depth + 1 levels deep.
        total_nodes: nodes that one verification checks, root included.
    """

    topk: int = 10
    depth: int = 5
    total_nodes: int = 60

    def __post_init__(self) -> None:
        if self.topk < 1 or self.depth < 0:
            raise UsageError(
                "the draft tree has no shape",
                got=f"topk {self.topk}, depth {self.depth}",
                expected="topk >= 1, depth >= 0",
            )
        if not self.levels < self.total_nodes <= self.history_size + 1:
            raise UsageError(
                "the draft tree's node count does not fit its depth and width",
                got=f"{self.total_nodes} nodes",
                expected=f"{self.levels + 1} to {self.history_size + 1} "
                f"for topk {self.topk} and depth {self.depth}",
                remedy="change --total-nodes, --depth or --topk",
            )

    def check_width(self, size: int) -> None:
        """Raises: UsageError: a draft vocabulary of ``size`` tokens cannot fill a node's children."""
        if self.topk > size:
            raise UsageError(
                "the draft tree is wider than the draft vocabulary",
                got=f"topk {self.topk}",
                expected=f"at most {size}",
                remedy="lower --topk",
            )

    @property
    def levels(self) -> int:
        """Levels below the root."""
        return self.depth + 1

    @property
    def history_size(self) -> int:
        """Nodes that drafting makes, of which ``total_nodes - 1`` are kept."""
        return self.topk + self.depth * self.topk**2


@dataclass(frozen=True)
class DraftTree:
    """A tree ready for verification. Node 0 is the root (the last committed token); parents precede children.

    Attributes:
        tokens: (N,) int64.
        parents: (N,) int64, the root's is 0.
        depths: (N,) int64, the root's is 0.
        ancestors: bool (N, N), ancestors[i, j]: j is i or above it.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor


class TreeGrowth:
    """The history of one drafting: what was proposed, and which nodes are expanded next.

    Usage: ``seed`` with the root's children, then for each round feed ``frontier_*`` to the drafter and
    ``grow`` with what it answers, then ``finish``.
    """

    def __init__(self, settings: TreeSettings) -> None:
        self.settings = settings
        self._tokens: list[Tensor] = []
        self._scores: list[Tensor] = []
        self._parents: list[Tensor] = []
        self._size = 0

    def seed(self, logprobs: Tensor, ids: Tensor) -> None:
        """Children of the root: (topk,) log-probabilities, best first, and target ids."""
        self._record(ids, logprobs, torch.full_like(ids, -1))
        self.frontier_tokens = ids
        self.frontier_scores = logprobs
        self.frontier_index = torch.arange(len(ids), device=ids.device)

    def grow(self, logprobs: Tensor, ids: Tensor) -> Tensor:
        """Children of the frontier: (topk, topk) log-probabilities and ids, row i of frontier node i.

        Returns:
            (topk,) for each node of the next frontier, the place of its parent in this one.
        """
        k = self.settings.topk
        scores = self.frontier_scores[:, None] + logprobs  # (k, k)
        first = self._size
        self._record(ids.flatten(), scores.flatten(), self.frontier_index.repeat_interleave(k))
        self.frontier_scores, best = _stable_top(scores.flatten(), k)
        self.frontier_tokens = ids.flatten()[best]
        self.frontier_index = first + best
        return best // k

    def _record(self, tokens: Tensor, scores: Tensor, parents: Tensor) -> None:
        self._tokens.append(tokens)
        self._scores.append(scores)
        self._parents.append(parents)
        self._size += len(tokens)

    def finish(self, root_token: Tensor) -> DraftTree:
        """The best ``total_nodes - 1`` nodes of the history under the root.

        Args:
            root_token: (1,) int64.
        """
        tokens, scores, parents = (torch.cat(part) for part in (self._tokens, self._scores, self._parents))
        keep = self.settings.total_nodes - 1
        chosen = _stable_top(scores, keep)[1].sort().values  # history order: parents before children
        place = torch.full((len(tokens) + 1,), -1, dtype=torch.int64, device=tokens.device)
        place[chosen] = torch.arange(1, keep + 1, device=tokens.device)
        place[-1] = 0  # the history's -1 is the root
        above = place[parents[chosen]]
        if above.device.type == "cpu":  # elsewhere the check would stop the stream
            assert int(above.min()) >= 0, "a draft node was kept without its parent"
        return build_tree(
            torch.cat([root_token, tokens[chosen]]),
            torch.cat([torch.zeros_like(above[:1]), above]),
            self.settings.levels,
        )


def build_tree(tokens: Tensor, parents: Tensor, levels: int) -> DraftTree:
    """Depths and ancestors of a tree given by parents; at most ``levels`` levels below the root."""
    count = len(tokens)
    rows = torch.arange(count, device=tokens.device)
    ancestors = torch.eye(count, dtype=torch.bool, device=tokens.device)
    above = parents
    for _ in range(levels):
        ancestors[rows, above] = True
        above = parents[above]
    return DraftTree(tokens, parents, ancestors.sum(1) - 1, ancestors)


def _stable_top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of (n,) scores, ties to the lower index."""
    values, order = scores.sort(descending=True, stable=True)
    return values[:k], order[:k]
