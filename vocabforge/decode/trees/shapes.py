"""Fixed tree shapes: chains, trees from files, and a default tree by Medusa's construction."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.errors import DataError, UsageError
from ..interface import Plan

RankPath = tuple[int, ...]  # ranks from the root: (0, 2) is the third best child of the best child

# Geometric assumption of default shapes: a node's best child is right with this probability, and if it is
# wrong, so is each next one. Rank r is right with FIRST_RIGHT * (1 - FIRST_RIGHT) ** r, at every level.
FIRST_RIGHT = 0.6


@dataclass(frozen=True)
class TreeShape:
    """A tree without tokens in level order; the nodes of a level are sorted by parent, then by rank."""

    parents: tuple[int, ...]  # index of every node's parent; 0 for the root
    ranks: tuple[int, ...]  # rank of every node among its siblings, 0 is the best; 0 for the root

    @property
    def nodes(self) -> int:
        """Number of nodes, root included."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def levels(self) -> int:
        """Number of levels below the root."""
        return self.depths[-1]

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each node's children."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, self.nodes):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @property
    def width(self) -> int:
        """Number of best children that a node needs: the highest rank + 1."""
        return max(self.ranks) + 1

    def cut(self, plan: Plan) -> TreeShape:
        """Return the part that fits a plan: its first levels and, of these, at most the plan's nodes."""
        count = min(sum(depth <= plan.levels for depth in self.depths), max(plan.nodes, 1))
        return self if count == self.nodes else TreeShape(self.parents[:count], self.ranks[:count])

    def plans(self) -> list[Plan]:
        """Return the sizes of the tree cut after each level, smallest first."""
        return [
            Plan(level, sum(depth <= level for depth in self.depths)) for level in range(1, self.levels + 1)
        ]


def chain(length: int) -> TreeShape:
    """Return a chain of ``length`` draft tokens."""
    if length < 1:
        raise UsageError("a chain has no draft tokens", got=f"{length}", expected="1 or more")
    return TreeShape((0, *range(length)), (0,) * (length + 1))


def from_paths(paths: Iterable[Any], *, source: object = None, most_levels: int | None = None) -> TreeShape:
    """Build a shape from the rank paths of its nodes, in any order and without the root.

    Raises:
        DataError: there are no paths, or one is not a list of ranks, is repeated, lacks its prefix or is too
            deep.
    """
    known: set[RankPath] = set()
    given = list(paths)
    for path in given:
        if not isinstance(path, (list, tuple)) or not path or any(type(r) is not int or r < 0 for r in path):
            raise _no_tree(path, "each path a list of ranks from the root, 0 or more, such as [0, 2]", source)
        if most_levels is not None and len(path) > most_levels:
            raise _no_tree(path, f"at most {most_levels} levels, which the drafter can draft", source)
        if tuple(path) in known:
            raise _no_tree(path, "each path once", source)
        known.add(tuple(path))
    if not known:
        raise _no_tree([], "at least one path, as in [[0], [1], [0, 0]]", source)
    for path in known:
        if path[:-1] and path[:-1] not in known:
            raise _no_tree(list(path), f"the path {list(path[:-1])} of its parent as well", source)
    order = sorted(known, key=lambda path: (len(path), path))
    place = {(): 0} | {path: node for node, path in enumerate(order, 1)}
    return TreeShape((0, *(place[path[:-1]] for path in order)), (0, *(path[-1] for path in order)))


def _no_tree(path: object, expected: str, source: object) -> DataError:
    return DataError("the paths do not form a tree", got=path, expected=expected, source=source)


def read_shape(file: Path, most_levels: int | None = None) -> TreeShape:
    """Read a shape from JSON: a list of paths, each a list of ranks from the root, as in Medusa's files."""
    try:
        values = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            "the tree file cannot be read", got=error, source=file, expected="JSON such as [[0], [1], [0, 0]]"
        ) from error
    if not isinstance(values, list):
        raise _no_tree(values, "a list of paths, such as [[0], [1], [0, 0]]", file)
    return from_paths(values, source=file, most_levels=most_levels)


def default_shape(levels: int, topk: int, nodes: int) -> TreeShape:
    """Return the shape with the longest expected accepted length under the assumption of :data:`FIRST_RIGHT`.

    Medusa's construction (Cai et al. 2024, section 2.3.3): the probability that a node is on the accepted
    path is the product of the accuracies along its own path, assumed to be independent. A node's product
    never exceeds its parent's, so it is optimal to repeatedly take the largest product whose parent is taken.
    Ties go to the upper level, then to the lower ranks. The path of best children reaches the last of
    ``levels``; ``nodes`` includes the root.
    """
    row = [FIRST_RIGHT * (1 - FIRST_RIGHT) ** rank for rank in range(topk)]
    taken: dict[RankPath, float] = {}  # path -> product
    waiting: list[tuple[float, int, RankPath]] = []  # best first: (-product, level, path)

    def take(path: RankPath, product: float) -> None:
        taken[path] = product
        if len(path) < levels:
            for rank, accuracy in enumerate(row):
                heapq.heappush(waiting, (-product * accuracy, len(path) + 1, (*path, rank)))

    for length in range(levels + 1):
        take((0,) * length, row[0] ** length if topk > 0 else 0.0)
    while len(taken) < nodes and waiting:
        negative, _, path = heapq.heappop(waiting)
        if path not in taken:
            take(path, -negative)
    if not 1 <= levels < nodes == len(taken):
        raise UsageError(
            "the shape of the draft tree is invalid",
            got=f"{levels} levels, topk {topk}, {nodes} nodes",
            expected="a level or more, and nodes for the root, every level and no more than the width allows",
        )
    return from_paths(path for path in taken if path)
