"""The draft tree of EAGLE-2 against a plain Python reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.core.errors import UsageError
from vocabforge.decode.tree import DraftTree, TreeGrowth, TreeSettings, build_tree

Expansion = tuple[list[float], list[int]]  # log-probabilities, best first, and token ids


@dataclass
class Node:
    token: int
    score: np.float32
    parent: int  # in the history, -1 is the root


def best(scores: list[np.float32], count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def reference(shape: TreeSettings, root: int, expand: list[list[Expansion]]) -> tuple[list[int], list[int]]:
    """Tokens and parents of the tree; ``expand[r][i]`` is what frontier node i of round r is expanded to."""
    history = [Node(token, np.float32(score), -1) for score, token in zip(*expand[0][0])]
    frontier = list(range(shape.topk))
    for round_ in range(1, shape.depth + 1):
        first = len(history)
        for place, index in enumerate(frontier):
            for score, token in zip(*expand[round_][place]):
                history.append(Node(token, history[index].score + np.float32(score), index))
        frontier = [first + i for i in best([node.score for node in history[first:]], shape.topk)]
    chosen = sorted(best([node.score for node in history], shape.total_nodes - 1))
    place_of = {-1: 0} | {index: place for place, index in enumerate(chosen, 1)}
    assert all(history[index].parent in place_of for index in chosen), "parent closure"
    return [root, *(history[i].token for i in chosen)], [0, *(place_of[history[i].parent] for i in chosen)]


def grown(shape: TreeSettings, root: int, expand: list[list[Expansion]]) -> DraftTree:
    growth = TreeGrowth(shape)
    growth.seed(torch.tensor(expand[0][0][0]), torch.tensor(expand[0][0][1]))
    for round_ in range(1, shape.depth + 1):
        before = growth.frontier_index
        logprobs = torch.tensor([expansion[0] for expansion in expand[round_]])
        parent = growth.grow(logprobs, torch.tensor([expansion[1] for expansion in expand[round_]]))
        # The places returned are those of the parents, which the drafter needs for its states.
        parents = torch.cat(growth._parents)[growth.frontier_index]
        assert torch.equal(before[parent], parents)
    return growth.finish(torch.tensor([root]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[TreeSettings, list[list[Expansion]]]:
    topk, depth = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    most = topk + depth * topk**2 + 1
    shape = TreeSettings(topk, depth, draw(st.integers(depth + 2, most)) if most > depth + 2 else most)
    # Few different values, 0 and tiny ones among them: ties of every kind.
    value = st.sampled_from([0.0, -0.0, -1e-9, -0.25, -0.5, -0.75, -1.0, -3.0, float("-inf")])
    scores = st.lists(value, min_size=topk, max_size=topk).map(lambda v: sorted(v, reverse=True))
    tokens = st.lists(st.integers(0, 30), min_size=topk, max_size=topk, unique=True)
    expansion = st.tuples(scores, tokens)
    rounds = [[draw(expansion)]]
    rounds += [[draw(expansion) for _ in range(topk)] for _ in range(depth)]
    return shape, rounds


@settings(max_examples=200, deadline=None)
@given(cases())
def test_growth_equals_the_reference(case: tuple[TreeSettings, list[list[Expansion]]]) -> None:
    shape, expand = case
    tree = grown(shape, 7, expand)
    tokens, parents = reference(shape, 7, expand)
    assert (tree.tokens.tolist(), tree.parents.tolist()) == (tokens, parents)
    depths, ancestors = [0], [{0}]
    for node in range(1, len(parents)):
        assert parents[node] < node
        depths.append(depths[parents[node]] + 1)
        ancestors.append(ancestors[parents[node]] | {node})
    assert tree.depths.tolist() == depths
    assert [set(row.nonzero().flatten().tolist()) for row in tree.ancestors] == ancestors
    assert max(depths) <= shape.levels
    # Static shapes: they follow from the settings alone.
    n = shape.total_nodes
    assert (tree.tokens.shape, tree.parents.shape, tree.depths.shape) == ((n,), (n,), (n,))
    assert tree.ancestors.shape == (n, n)
    siblings = list(zip(parents[1:], tokens[1:]))
    assert len(set(siblings)) == len(siblings), "two siblings with one token"


def test_a_sure_child_does_not_displace_its_parent() -> None:
    """Log-probabilities of exactly 0 make a chain of ties; the parents must win them."""
    shape = TreeSettings(topk=2, depth=3, total_nodes=5)
    sure: Expansion = ([0.0, -5.0], [4, 9])
    tree = grown(shape, 1, [[sure], [sure, sure], [sure, sure], [sure, sure]])
    assert tree.parents.tolist() == [0, 0, 1, 2, 3]
    assert tree.tokens.tolist() == [1, 4, 4, 4, 4]


def test_scores_are_fp32_sums_along_the_path() -> None:
    shape = TreeSettings(topk=2, depth=1, total_nodes=4)
    # Children of node 0 at -1.25 and -1.5, of node 1 at -1.0 - 0.125: the last beats both.
    expand: list[list[Expansion]] = [
        [([-0.25, -1.0], [1, 2])],
        [([-1.0, -1.25], [3, 4]), ([-0.125, -9.0], [5, 6])],
    ]
    assert grown(shape, 0, expand).tokens.tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("topk", "depth", "total"),
    [(0, 1, 3), (1, -1, 3), (3, 2, 3), (1, 0, 3), (2, 1, 8), (10, 5, 512)],
)
def test_impossible_shapes_are_refused(topk: int, depth: int, total: int) -> None:
    with pytest.raises(UsageError, match="draft tree"):
        TreeSettings(topk, depth, total)


@pytest.mark.parametrize(
    ("topk", "depth", "total"), [(1, 0, 2), (1, 5, 7), (2, 1, 7), (2, 1, 3), (10, 5, 511)]
)
def test_limits_of_the_shape_are_allowed(topk: int, depth: int, total: int) -> None:
    shape = TreeSettings(topk, depth, total)
    assert shape.levels == depth + 1


def test_build_tree_of_a_root_alone() -> None:
    root = torch.tensor([5])
    tree = build_tree(root, torch.zeros(1, dtype=torch.int64), 0)
    assert (tree.depths.tolist(), tree.ancestors.tolist()) == ([0], [[True]])
