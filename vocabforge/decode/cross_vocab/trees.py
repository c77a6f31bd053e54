"""Conversion of draft trees to the target's tokens: token by token (TLI), or by text (SLEM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...vocab.overlap.bridge import Bridge
from ..interface import Plan
from ..proposers.ngram import chain_trees, count_nodes, merged_trees
from ..tree import DraftDistribution, DraftTree, root_trees
from .text import DraftText, cut_incomplete

NO_TOKEN = -1

Paths = list[list[int]]  # drafter tokens from below the root to each leaf


@dataclass(frozen=True)
class Drafted:
    """A draft of B rows: the tree in drafter tokens, the paths of each row, and the texts they continue.

    With ``even``, the target's trees have the plan's size, because compiled passes support a single size.
    """

    tree: DraftTree
    paths: list[Paths]
    texts: Sequence[DraftText]
    even: bool = False


# (draft, roots (B,) in target tokens, plan in target tokens) -> target trees
Translation = Callable[[Drafted, Tensor, Plan], DraftTree]


def paths_of(tree: DraftTree) -> list[Paths]:
    """Return each row's tokens from below the root to each leaf."""
    tokens = tree.tokens.tolist()
    if tree.chain:
        return [[row[1:]] for row in tokens]
    return [
        [[row[node] for node in path[1:]] for path in paths] for row, paths in zip(tokens, tree.leaf_paths())
    ]


class TokenMap:
    """TLI's translation, node by node: ``pairs`` (n, 2) are ids of target and drafter, one to one."""

    def __init__(self, pairs: np.ndarray, rows: int, device: torch.device) -> None:
        self._host = np.full(rows, NO_TOKEN, dtype=np.int64)
        self._host[pairs[:, 1]] = pairs[:, 0]
        self._table = torch.from_numpy(self._host).to(device)

    def __call__(self, drafted: Drafted, roots: Tensor, plan: Plan) -> DraftTree:
        tree = drafted.tree
        tokens = self._table[tree.tokens].clamp(min=0)  # padding nodes may have any token
        tokens = torch.cat([roots[:, None], tokens[:, 1:]], 1)
        distributions = None
        if tree.distributions is not None:
            distributions = [
                {node: self._distribution(distribution) for node, distribution in row.items()}
                for row in tree.distributions
            ]
        alive = tree.alive
        if drafted.even and alive is None:
            alive = torch.ones_like(tokens, dtype=torch.bool)
        if any(text.held for text in drafted.texts):  # no common token continues half a character
            whole = torch.tensor([[not text.held] for text in drafted.texts], device=roots.device)
            whole = whole | (torch.arange(tokens.shape[1], device=roots.device) == 0)
            alive = whole if alive is None else alive & whole
        return replace(tree, tokens=tokens, distributions=distributions, alive=alive)

    def _distribution(self, distribution: object) -> DraftDistribution:
        """Map a distribution to the target's ids, which are ordered differently."""
        assert isinstance(distribution, DraftDistribution)
        ids = self._host[distribution.ids]
        order = ids.argsort()
        return DraftDistribution(ids[order], distribution.weights[order])


class Respelling:
    """SLEM's translation: every path becomes text, and the text becomes target tokens."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def __call__(self, drafted: Drafted, roots: Tensor, plan: Plan) -> DraftTree:
        branches = [
            self._respelled(paths, text, plan)
            for paths, text in zip(drafted.paths, drafted.texts, strict=True)
        ]
        longest = max((len(branch) for row in branches for branch in row), default=0)
        if not longest and not drafted.even:
            return root_trees(roots)
        chains = plan.nodes == plan.levels + 1 if drafted.even else all(len(row) <= 1 for row in branches)
        if chains:
            drafts = [row[0] if row else [] for row in branches]
            length = plan.levels if drafted.even else longest
            return chain_trees(roots, drafts, length, masked=drafted.even)
        nodes = plan.nodes if drafted.even else max(count_nodes(row, plan.nodes) for row in branches)
        return merged_trees(roots, branches, longest, nodes)

    def _respelled(self, paths: Paths, text: DraftText, plan: Plan) -> Paths:
        """Return each path's target tokens, up to the plan's levels; drop paths that do not fit the text."""
        target_paths: Paths = []
        written = [self._written(path, text.held) for path in paths]
        spelled = self._bridge.target.speller.spell([content for content, _ in written])
        for (content, ended), ids in zip(written, spelled, strict=True):
            tokens = list(ids or ())
            if ended and self._bridge.eos is not None and (tokens or content is None):
                tokens.append(self._bridge.eos[0])
            tokens = tokens[: plan.levels]
            if tokens and tokens not in target_paths:
                target_paths.append(tokens)
        return target_paths

    def _written(self, path: Sequence[int], held: bytes) -> tuple[bytes | None, bool]:
        """Return the bytes of a path after the held ones, and whether the text ends there."""
        forms, written, ended = self._bridge.drafter.forms, b"", False
        for token in path:
            if self._bridge.ends(token):
                ended = True
                break
            written += forms[token] or b""
        if not written.startswith(held):
            return None, False
        written = written[len(held) :]
        return (written if ended else cut_incomplete(written)) or None, ended
