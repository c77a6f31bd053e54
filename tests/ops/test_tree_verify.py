"""Verification by the target's choices: the longest path, and every implementation finds the same one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from tests.ops.parity import assert_same, moved, parity
from tests.ops.trees_support import depths_and_ancestors, random_parents
from vocabforge.ops.tree_verify import tree_verify

# rows, nodes, levels
SHAPES = [(2, 1, 3), (5, 2, 1), (20, 12, 3), (6, 60, 6), (4, 200, 5), (2, 256, 255), (1, 700, 3)]


def trees(rows: int, nodes: int, levels: int, seed: int = 0, vocab: int = 2) -> dict[str, Any]:
    """Random trees of few tokens, so that paths are long, siblings alike and equally long paths common."""
    stream = torch.Generator().manual_seed(seed)
    parents = random_parents(rows, nodes, levels, stream)
    depths, ancestors = depths_and_ancestors(parents)
    alive = torch.rand(rows, nodes, generator=stream) < 0.95
    alive[:, 0] = True
    return {
        "tokens": torch.randint(vocab, (rows, nodes), generator=stream),
        "parents": parents,
        "depths": depths,
        "ancestors": ancestors,
        "choices": torch.randint(vocab, (rows, nodes), generator=stream),
        "valid": torch.rand(rows, nodes, generator=stream) < 0.8,
        "alive": alive,
        "levels": levels,
    }


def longest(tree: dict[str, Any], row: int) -> list[int]:
    """The first of the longest accepted paths, by a search that knows nothing of tensors."""
    parents, tokens = tree["parents"][row].tolist(), tree["tokens"][row].tolist()
    choices, alive = tree["choices"][row].tolist(), tree["alive"][row].tolist()
    paths = {0: [0]}
    for node in range(1, len(parents)):
        above = parents[node]
        if above in paths and alive[node] and tokens[node] == choices[above]:
            paths[node] = [*paths[above], node]
    return max(paths.values(), key=lambda path: (len(path), -path[-1]))


def agree(shape: tuple[int, ...], alive: bool, backend: str, device: str) -> None:
    tree = moved(trees(*shape, seed=int(alive)) | ({"alive": None} if alive else {}), device)
    assert_same(tree_verify(**tree, backend=backend), tree_verify(**tree, backend="reference"))


@pytest.mark.parametrize("shape", [(3, 1, 2), (200, 12, 3), (20, 60, 6)], ids=str)
def test_the_reference_finds_the_longest_path(shape: tuple[int, int, int]) -> None:
    tree = trees(*shape)
    levels, lengths = shape[2], set()
    for row, (path, numbers) in enumerate(zip(*(part.tolist() for part in tree_verify(**tree)))):
        expected = longest(tree, row)
        count = len(expected)
        lengths.add(count)
        assert path == expected + [expected[-1]] * (levels + 1 - count)
        distribution = tree["valid"][row, path].tolist()
        assert numbers[:2] == [count - 1, distribution.index(False) if False in distribution else levels + 1]
        assert numbers[2:] == tree["choices"][row, path].tolist()
    assert shape[1] == 1 or len(lengths) > 2


CASES = list(product(SHAPES, [False, True]))  # some nodes dead, or all alive
TestParity = parity("tree_verify", agree, emulated=CASES, cpu=CASES, cuda=CASES)
