"""Cycles from ranks: against a walk in plain Python, and by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from replay.types import MISSED
from replay.walk import accepted, walk

from vocabforge.decode.trees.shapes import TreeShape, chain, default_shape, from_paths

M = MISSED


def plain(ranks: np.ndarray, offsets: list[int], shape: TreeShape) -> tuple[tuple[int, ...], ...]:
    """One answer after the other, one cycle after the other."""
    found = []
    for begin, end in pairwise(offsets):
        lengths, at = [], begin
        while at < end:
            row = tuple(ranks[at].tolist())
            depth = max(len(path) for path in shape.paths if row[: len(path)] == path)
            lengths.append(min(depth + 1, end - at))
            at += lengths[-1]
        found.append(tuple(lengths))
    return tuple(found)


def random_ranks(sizes: list[int], levels: int, seed: int) -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(seed)
    blocks = []
    for size in sizes:
        drawn = generator.choice([0, 0, 0, 1, 2, 3, M], size=(size, levels)).astype(np.uint8)
        drawn[np.logical_or.accumulate(drawn == M, axis=1)] = M
        for row in range(size):
            drawn[row, size - row :] = M
        blocks.append(drawn)
    return np.concatenate(blocks), [0, *np.cumsum(sizes).tolist()]


@pytest.mark.parametrize(
    "shape",
    [
        chain(1),
        chain(5),
        default_shape(4, 4, 20),
        from_paths([[1], [3], [1, 0], [1, 2], [1, 0, 0]]),
        chain(9),
    ],
    ids=["one", "chain", "tree", "gaps", "too deep"],
)
def test_cycles_are_those_of_a_plain_walk(shape: TreeShape) -> None:
    ranks, offsets = random_ranks([12, 0, 1, 40, 7, 0], 5, seed=1)
    expected = plain(ranks, offsets, shape)
    found = walk(ranks, offsets, shape)
    assert found.lengths == expected
    assert found.committed.tolist() == [sum(one) for one in expected] == [12, 0, 1, 40, 7, 0]
    assert found.cycles.tolist() == [len(one) for one in expected]
    assert max(map(max, filter(None, expected))) > 1


def test_a_walk_by_hand() -> None:
    ranks = np.array([[0, 1, M], [0, 0, 0], [1, 0, M], [0, 0, M], [M, M, M], [0, M, M]], np.uint8)
    tree = from_paths([[0], [1], [0, 1], [0, 1, 0]])
    assert accepted(ranks, tree).tolist() == [2, 1, 1, 1, 0, 1]
    assert accepted(ranks, chain(2)).tolist() == [1, 2, 0, 2, 0, 1]
    # Root 0 accepts two and goes on at 3, which accepts one and goes on at 5, which accepts the last token.
    found = walk(ranks, [0, 6], tree)
    assert found.lengths == ((3, 2, 1),)
    # Both ends of the same rows: the answers do not run into each other.
    assert walk(ranks, [0, 2, 6], chain(3)).lengths == ((2,), (1, 3))


def test_no_rows_have_no_cycle() -> None:
    found = walk(np.empty((0, 3), np.uint8), [0, 0], chain(3))
    assert found.lengths == ((),)
    assert (found.committed.tolist(), found.cycles.tolist()) == ([0], [0])
