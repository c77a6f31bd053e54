"""The draft tree of EAGLE-2 against a plain Python reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vocabforge.core.errors import UsageError
from vocabforge.decode.tree import DraftTree, TreeSettings, build_tree
from vocabforge.decode.trees.dynamic import DynamicGrowth
from vocabforge.models.heads.registry import DraftState

Expansion = tuple[list[float], list[int]]  # log-probabilities, best first, and token ids
Growing = tuple[TreeSettings, list[list[Expansion]]]


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


class Scripted:
    """A head that expands frontiers as it is told: ``rounds[r][row][i]`` is frontier node i of round r."""

    def __init__(self, rounds: list[list[list[Expansion]]]) -> None:
        self.rounds = list(rounds)

    def topk(self, hidden: torch.Tensor, k: int, state: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        nodes = [node for row in self.rounds.pop(0) for node in row]
        assert len(hidden) == len(nodes)
        return torch.tensor([node[0] for node in nodes]), torch.tensor([node[1] for node in nodes])


def grown(shape: TreeSettings, root: int, *expands: list[list[Expansion]]) -> DraftTree:
    """The trees of one row for each of ``expands``, all under one root token."""
    rows = len(expands)
    growth = DynamicGrowth(shape)
    head = Scripted([[expand[r] for expand in expands] for r in range(shape.depth + 1)])
    width, before = 1, None
    for round_ in range(shape.depth + 1):
        frontier = growth.add(head, torch.zeros(rows, width, 1), DraftState(round_, None, None))  # type: ignore[arg-type]
        assert (frontier is None) == (round_ == shape.depth)
        if frontier is None:
            break
        width = shape.topk
        assert frontier.tokens.shape == frontier.parents.shape == (rows, width)
        if before is not None:  # the places returned are those of the parents, which the drafter needs
            parents = growth._expanded[-1]  # of the history's nodes, each of topk children
            expanded = torch.cat(growth._expanded, 1).gather(1, parents // shape.topk)
            assert torch.equal(before.gather(1, frontier.parents), expanded)
        before = growth._expanded[-1][:, -shape.topk :]
    return growth.finish(torch.full((rows,), root))


@st.composite
def cases(draw: st.DrawFn) -> Growing:
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


# Log-probabilities of exactly 0 make a chain of ties; the parents must win them.
SURE: Expansion = ([0.0, -5.0], [4, 9])
TIES = (TreeSettings(2, 3, 5), [[SURE], [SURE] * 2, [SURE] * 2, [SURE] * 2])


@settings(max_examples=60, deadline=None)
@given(cases(), cases())
@example(TIES, TIES)
def test_every_row_equals_the_reference(first: Growing, second: Growing) -> None:
    shape, expand = first
    fits = second[0].topk == shape.topk and second[0].depth >= shape.depth
    rows = [expand, second[1][: len(expand)] if fits else expand, expand]
    trees = grown(shape, 7, *rows)
    for row, one in enumerate(rows):
        tokens, parents = reference(shape, 7, one)
        assert (trees.tokens[row].tolist(), trees.parents[row].tolist()) == (tokens, parents)
        depths, ancestors = [0], [{0}]
        for node in range(1, len(parents)):
            assert parents[node] < node
            depths.append(depths[parents[node]] + 1)
            ancestors.append(ancestors[parents[node]] | {node})
        assert trees.depths[row].tolist() == depths
        assert [set(line.nonzero().flatten().tolist()) for line in trees.ancestors[row]] == ancestors
        assert max(depths) <= shape.levels
        siblings = list(zip(parents[1:], tokens[1:]))
        assert len(set(siblings)) == len(siblings), "two siblings with one token"
    assert trees.tokens.shape == (3, shape.total_nodes), "static shapes: they follow from the settings alone"


@pytest.mark.parametrize(
    ("topk", "depth", "total"), [(0, 1, 3), (1, -1, 3), (3, 2, 3), (1, 0, 3), (2, 1, 8), (10, 5, 512)]
)
def test_impossible_shapes_are_refused(topk: int, depth: int, total: int) -> None:
    with pytest.raises(UsageError, match="draft tree"):
        TreeSettings(topk, depth, total)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_ancestors_as_bits_and_paths_to_leaves(count: int, draw: Any) -> None:
    parents = [0, *(draw.randrange(node) for node in range(1, count))]
    tree = build_tree(torch.zeros(1, count, dtype=torch.int64), torch.tensor([parents]), count)
    words = tree.ancestor_words()[0].tolist()
    above = [{0}]
    for node in range(1, count):
        above.append(above[parents[node]] | {node})
    for node, row in enumerate(words):
        bits = {64 * word + bit for word, value in enumerate(row) for bit in range(64) if value >> bit & 1}
        assert bits == above[node]
    leaves = [node for node in range(count) if node not in parents[1:]]
    assert tree.leaf_paths() == [[sorted(above[leaf]) for leaf in leaves]]
