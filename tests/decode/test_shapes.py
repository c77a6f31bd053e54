"""Tree shapes: order, files, cuts, and Medusa's construction against all trees there are."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.core.errors import DataError, UsageError
from vocabforge.decode.interface import Plan
from vocabforge.decode.trees.shapes import FIRST_RIGHT, TreeShape, default_shape, from_paths, read_shape


def expected_length(paths: Iterable[tuple[int, ...]]) -> float:
    """Under the geometric assumption: the sum over nodes of the products along their paths."""
    return sum(math.prod(FIRST_RIGHT * (1 - FIRST_RIGHT) ** rank for rank in path) for path in paths)


def best_by_force(levels: int, topk: int, nodes: int) -> float:
    """The longest expected length of all parent-closed trees with a path of best children to the last level."""
    spine = {(0,) * n for n in range(levels + 1)}
    paths = [path for n in range(1, levels + 1) for path in itertools.product(range(topk), repeat=n)]
    others = [path for path in paths if path not in spine]
    trees = (spine | set(chosen) for chosen in itertools.combinations(others, nodes - len(spine)))
    return max(expected_length(tree) for tree in trees if all(not path or path[:-1] in tree for path in tree))


@pytest.mark.parametrize(("levels", "topk", "most"), [(1, 3, 4), (2, 2, 7), (2, 3, 8), (3, 2, 9)])
def test_default_shape_is_the_best_of_all_trees(levels: int, topk: int, most: int) -> None:
    for nodes in range(levels + 1, most + 1):
        shape = default_shape(levels, topk, nodes)
        assert (shape.nodes, shape.levels) == (nodes, levels)
        assert shape.width <= topk
        assert expected_length(paths_of(shape)) == pytest.approx(
            best_by_force(levels, topk, nodes), abs=1e-12
        )


def paths_of(shape: TreeShape) -> tuple[tuple[int, ...], ...]:
    """Ranks from the root to every node."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, shape.nodes):
        found.append((*found[shape.parents[node]], shape.ranks[node]))
    return tuple(found)


@st.composite
def path_sets(draw: st.DrawFn) -> list[list[int]]:
    """Parent-closed, in any order, with gaps between ranks."""
    found: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 12))):
        above = draw(st.sampled_from([(), *found]))
        path = (*above, draw(st.integers(0, 4)))
        if path not in found and len(path) <= 4:
            found.append(path)
    return [list(path) for path in draw(st.permutations(found))]


@settings(max_examples=50, deadline=None)
@given(path_sets())
def test_shapes_are_their_paths_in_level_order(paths: list[list[int]]) -> None:
    shape = from_paths(paths)
    expected = sorted(map(tuple, paths), key=lambda path: (len(path), path))
    assert paths_of(shape) == ((), *expected)
    assert all(parent < node for node, parent in enumerate(shape.parents[1:], 1))
    assert shape.depths == tuple(map(len, paths_of(shape)))
    assert shape.levels == max(map(len, expected))
    assert shape.width == max(path[-1] for path in expected) + 1
    assert sorted(itertools.chain(*shape.children)) == list(range(1, shape.nodes))
    assert all(shape.parents[child] == node for node, part in enumerate(shape.children) for child in part)
    for plan in shape.plans():
        part = shape.cut(plan)
        assert paths_of(part) == ((), *(path for path in expected if len(path) <= plan.levels))
        assert (part.levels, part.nodes) == (plan.levels, plan.nodes)
    assert shape.plans()[-1] == Plan(shape.levels, shape.nodes)
    assert shape.cut(shape.plans()[-1]) is shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[0], [0, 0], [0]]", "each path once"),
        ("[[0], [1, 0]]", r"\[1, 0\][\s\S]*\[1\] of its parent"),
        ("[[0], [-1]]", "list of ranks"),
        ("[[0], [true]]", "list of ranks"),
        ("[[0], []]", "list of ranks"),
        ("[0]", "list of ranks"),
        ("[]", "at least one path"),
        ('{"paths": [[0]]}', "a list of paths"),
        ("[[0], [0, 0], [0, 0, 0]]", "at most 2 levels"),
        ("[" * 100_000, "tree file"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tree.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read_shape(file, most_levels=2)
    assert str(file) in str(caught.value)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    shape = default_shape(4, 3, 20)
    file = tmp_path / "tree.json"
    file.write_text(json.dumps(paths_of(shape)[1:]))
    assert read_shape(file, most_levels=4) == shape


@pytest.mark.parametrize(("levels", "topk", "nodes"), [(0, 2, 3), (3, 2, 3), (2, 0, 4), (1, 2, 4)])
def test_default_shapes_that_cannot_be_are_refused(levels: int, topk: int, nodes: int) -> None:
    with pytest.raises(UsageError):
        default_shape(levels, topk, nodes)
