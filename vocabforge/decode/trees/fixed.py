"""Drafting of a fixed shape: best children, or children drawn from the head's distribution (verification B).

All node positions are known before drafting, so every step is a lookup with fixed indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.heads.registry import DraftHead, DraftState
from ...ops.trees import bits_of
from ..interface import Draw, Frontier, Growth, Plan
from ..sampling import Chance, draft_weights
from ..tree import DraftDistribution, DraftTree, build_tree
from .shapes import TreeShape

MISSING = 0  # token of a missing node: a valid id that is never accepted


@dataclass(frozen=True)
class _Level:
    nodes: tuple[int, ...]  # indices of the W nodes in the tree
    children: tuple[tuple[int, ...], ...]  # their children, (W, at most k)
    k: int  # children requested from the head: the highest rank + 1
    picks: Tensor | None  # (n,) indices of the n children in the head's (W * k) outputs; None: all, in order
    fresh: Tensor | None  # (W',) indices of the next frontier among the n children; None: all of them
    parents: Tensor  # (1, W') indices of the next frontier's parents in this one
    words: Tensor  # (1, W', words) bits of the next frontier, see ``Frontier``


@dataclass(frozen=True)
class _Layout:
    """A shape as tensors on one device: levels, parents and depths (1, N), ancestors (1, N, N)."""

    shape: TreeShape
    levels: tuple[_Level, ...]
    parents: Tensor
    depths: Tensor
    ancestors: Tensor


class ShapePolicy:
    """Policy for trees of one shape: the ranks that are drafted below each node.

    With ``sample``, a node's children are drawn from the head's distribution, without replacement, and only
    their number matters. At temperature 0 the best tokens are taken in any case.
    """

    def __init__(self, shape: TreeShape, sample: bool = False) -> None:
        self.shape = shape if not sample else _renumbered(shape)
        self.samples = sample
        self.plan = Plan(shape.levels, shape.nodes)
        self.scratch = sum(1 for children in shape.children[1:] if children)
        self.width = self.shape.width
        inner = [depth for depth, children in zip(self.shape.depths, self.shape.children) if children]
        self.broadest = max(map(inner.count, inner), default=1)
        self._layouts: dict[tuple[Plan, torch.device], _Layout] = {}

    def plans(self) -> list[Plan]:
        return self.shape.plans()

    def grow(self, rows: int, plan: Plan, draws: Sequence[Draw] | None, bits: bool = False) -> Growth:
        if self.samples and draws is not None and not all(draw.sampling.greedy for draw in draws):
            return SampledGrowth(self, plan, draws)
        return BestGrowth(self, plan)

    @property
    def chain(self) -> bool:
        """Whether the tree is a chain of best tokens."""
        return not self.samples and self.plan.levels + 1 == self.plan.nodes

    def tree(self, plan: Plan, tokens: Tensor) -> DraftTree:
        """Return the trees of these tokens (B, N), roots first."""
        return _tree(self.layout(plan, tokens.device), tokens)

    def layout(self, plan: Plan, device: torch.device) -> _Layout:
        """Return the layout of a plan's tree, made once."""
        key = (plan, device)
        if key not in self._layouts:
            with torch.inference_mode(False):  # usable in both modes
                self._layouts[key] = _lay_out(self.shape.cut(plan), device)
        return self._layouts[key]

    def ended(self, plan: Plan, levels: int, device: torch.device) -> _Layout:
        """Return the layout of a plan's tree after ``levels`` levels; only a chain may end early."""
        return self.layout(plan if levels == plan.levels else Plan(levels, levels + 1), device)


class BestGrowth:
    """A draft of a head's best tokens."""

    def __init__(self, policy: ShapePolicy, plan: Plan) -> None:
        self._policy, self._plan = policy, plan
        self._tokens: list[Tensor] = []  # of each level, (B, n)

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        self._layout = self._policy.layout(self._plan, hidden.device)
        level = self._layout.levels[len(self._tokens)]
        rows = hidden.flatten(0, 1)
        # Not isinstance: checking a protocol takes longer than the head.
        best = getattr(head, "best", None) if level.k == 1 and not rows.is_cuda else None
        ids = head.topk(rows, level.k, state)[1] if best is None else best(rows)  # (B * W, k)
        tokens = ids.reshape(hidden.shape[0], -1)  # (B, W * k)
        if level.picks is not None:
            tokens = tokens.index_select(1, level.picks)
        self._tokens.append(tokens)
        return _next(self._layout, len(self._tokens), tokens)

    def finish(self, roots: Tensor) -> DraftTree:
        layout = self._policy.ended(self._plan, len(self._tokens), roots.device)
        return _tree(layout, torch.cat([roots[:, None], *self._tokens], 1))


class SampledGrowth:
    """A draft of tokens drawn from a head's distribution, together with the distributions.

    If a node's distribution has fewer tokens than the shape has children, the remaining children and their
    descendants are dead.
    """

    def __init__(self, policy: ShapePolicy, plan: Plan, draws: Sequence[Draw]) -> None:
        self._policy, self._plan, self._draws = policy, plan, draws
        self._tokens: list[Tensor] = []
        self._distributions: list[dict[int, DraftDistribution]] = [{} for _ in draws]
        self._dead: list[set[int]] = [set() for _ in draws]

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        """Draw the children of the frontier with states ``hidden`` (B, W, H), node by node."""
        self._layout = self._policy.layout(self._plan, hidden.device)
        level = self._layout.levels[len(self._tokens)]
        width = len(level.nodes)
        logits, ids = head.scores(hidden.flatten(0, 1), level.k, state)  # (B * W, C), (C,) or (B * W, C)
        scores, names = logits.cpu(), ids.cpu().numpy()  # one copy for all rows
        drawn = [
            self._children(row, level, place, scores[at], names if names.ndim == 1 else names[at])
            for row in range(len(self._draws))
            for place, at in enumerate(range(row * width, (row + 1) * width))
        ]
        flat = torch.tensor([token for children in drawn for token in children], dtype=torch.int64)
        tokens = flat.view(len(self._draws), -1).to(hidden.device)  # (B, n)
        self._tokens.append(tokens)
        return _next(self._layout, len(self._tokens), tokens)

    def _children(
        self, row: int, level: _Level, place: int, logits: Tensor, ids: np.ndarray[Any, Any]
    ) -> list[int]:
        """Return the tokens of one node's children, from its logits and their ids (C,)."""
        node, children = level.nodes[place], level.children[place]
        draw, dead = self._draws[row], self._dead[row]
        tokens: list[int] = []
        if node not in dead and draw.sampling.greedy:
            best = np.lexsort((ids, -logits.numpy()))[: len(children)]  # ties go to the lower id, as in topk
            tokens = ids[best].tolist()
        elif node not in dead:
            weights = draft_weights(logits, draw.sampling)
            support = np.flatnonzero(weights > 0)
            support = support[ids[support].argsort()]
            distribution = DraftDistribution(ids[support], weights[support])
            self._distributions[row][node] = distribution
            tokens = draw_children(distribution, len(children), draw.chance)
        dead.update(children[len(tokens) :])
        return tokens + [MISSING] * (len(children) - len(tokens))

    def finish(self, roots: Tensor) -> DraftTree:
        tokens = torch.cat([roots[:, None], *self._tokens], 1)
        alive: Tensor | None = None
        if any(self._dead):
            flags = [[node not in dead for node in range(tokens.shape[1])] for dead in self._dead]
            alive = torch.tensor(flags, device=tokens.device)
        layout = self._policy.ended(self._plan, len(self._tokens), tokens.device)
        return _tree(layout, tokens, alive, self._distributions)


def draw_children(distribution: DraftDistribution, most: int, chance: Chance) -> list[int]:
    """Draw up to ``most`` different tokens one after the other, without replacement."""
    weights, tokens = distribution.weights.copy(), []
    for _ in range(min(most, len(distribution.ids))):
        place = chance.draw(weights)
        tokens.append(int(distribution.ids[place]))
        weights[place] = 0 * weights[place]  # keeps fractions exact
    return tokens


def _next(layout: _Layout, done: int, tokens: Tensor) -> Frontier | None:
    """Return the frontier after ``done`` expansions, the last of which gave ``tokens`` (B, n)."""
    if done == len(layout.levels):
        return None
    level = layout.levels[done - 1]
    if level.fresh is not None:
        tokens = tokens.index_select(1, level.fresh)
    rows = len(tokens)
    return Frontier(tokens, level.parents.expand(rows, -1), level.words.expand(rows, -1, -1))


def _tree(
    layout: _Layout,
    tokens: Tensor,
    alive: Tensor | None = None,
    distributions: Sequence[dict[int, DraftDistribution]] | None = None,
) -> DraftTree:
    rows = len(tokens)
    return DraftTree(
        tokens,
        layout.parents.expand(rows, -1),
        layout.depths.expand(rows, -1),
        layout.ancestors.expand(rows, -1, -1),
        alive=alive,
        chain=layout.shape.levels + 1 == layout.shape.nodes,
        distributions=distributions,
    )


def _renumbered(shape: TreeShape) -> TreeShape:
    """Renumber ranks to 0, 1, ... below every node: draws have an order and no gaps."""
    ranks = [0] * shape.nodes
    for children in shape.children:
        for rank, node in enumerate(children):
            ranks[node] = rank
    return TreeShape(shape.parents, tuple(ranks))


def _lay_out(shape: TreeShape, device: torch.device) -> _Layout:
    tokens = torch.zeros(1, shape.nodes, dtype=torch.int64, device=device)
    tree = build_tree(tokens, torch.tensor([shape.parents], device=device), shape.levels)
    # The expanded nodes below the root, in that order.
    expanded = [node for node in range(1, shape.nodes) if shape.children[node]]
    seen = bits_of(tree.ancestors[:, :, expanded])  # (1, N, words)
    levels = []
    frontier: list[int] = [0]
    while frontier:
        children = [shape.children[node] for node in frontier]
        fresh = [child for part in children for child in part]
        inner = [child for child in fresh if shape.children[child]]
        k = max(shape.ranks[child] for child in fresh) + 1
        picks = [place * k + shape.ranks[child] for place, part in enumerate(children) for child in part]
        place_of = {node: place for place, node in enumerate(frontier)}
        levels.append(
            _Level(
                tuple(frontier),
                tuple(children),
                k,
                _places(picks, len(frontier) * k, device),
                _places(
                    [place for place, child in enumerate(fresh) if child in set(inner)], len(fresh), device
                ),
                torch.tensor(
                    [[place_of[shape.parents[child]] for child in inner]], dtype=torch.int64, device=device
                ),
                seen[:, inner],
            )
        )
        frontier = inner
    return _Layout(shape, tuple(levels), tree.parents, tree.depths, tree.ancestors)


def _places(places: list[int], size: int, device: torch.device) -> Tensor | None:
    """Return indices as a tensor; None if they are all indices in order."""
    if places == list(range(size)):
        return None
    return torch.tensor(places, dtype=torch.int64, device=device)
