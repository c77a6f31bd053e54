"""The best nodes of a draft history as a tree: parents are kept, and all implementations agree."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.ops.parity import assert_same, moved, parity
from tests.ops.trees_support import coarse, depths_and_ancestors, fine
from vocabforge.core.errors import UsageError
from vocabforge.ops.tree_select import SelectedTree, tree_select

# rows, topk, depth, nodes
SHAPES = [
    (2, 1, 0, 2),
    (1, 1, 4, 6),
    (3, 4, 2, 12),
    (2, 10, 5, 60),
    (2, 10, 5, 511),
    (1, 64, 1, 256),
    (1, 10, 64, 67),
]


def history(rows: int, topk: int, depth: int, kind: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """What a dynamic tree records: tokens, cumulative scores, parents, each (B, topk + depth * topk^2)."""
    stream = torch.Generator().manual_seed(seed)
    make = coarse if kind == "ties" else fine
    scores, parents = make((rows, topk), stream), torch.full((rows, topk), -1)
    frontier = torch.arange(topk).expand(rows, -1)
    for _ in range(depth):
        first = scores.shape[1]
        above = scores.gather(1, frontier)
        added = (above[:, :, None] + make((rows, topk, topk), stream)).flatten(1)
        parents = torch.cat([parents, frontier.repeat_interleave(topk, 1)], 1)
        frontier = first + added.sort(dim=1, descending=True, stable=True).indices[:, :topk]
        scores = torch.cat([scores, added], 1)
    return torch.randint(2**40, scores.shape, generator=stream), scores, parents


def agree(shape: tuple[int, int, int, int], kind: str, backend: str, device: str) -> None:
    rows, topk, depth, nodes = shape
    given = moved((torch.arange(rows), *history(rows, topk, depth, kind, seed=nodes)), device)
    asked = {"nodes": min(nodes, 256), "levels": depth + 1}
    expected = tree_select(*given, **asked, backend="reference")
    for parents in (given[3], given[3][:, ::topk]):  # of each node, and of each node's children
        for which in (backend, "reference"):
            assert_same(tree_select(*given[:3], parents, **asked, backend=which), expected)


@pytest.mark.parametrize("kind", ["ties", "fine"])
@pytest.mark.parametrize(
    ("topk", "depth", "nodes"), [(4, 2, 12), (3, 3, 31), (10, 5, 60), (8, 2, 137), (1, 5, 7)]
)
def test_the_reference_keeps_the_best_and_their_parents(kind: str, topk: int, depth: int, nodes: int) -> None:
    tokens, scores, parents = history(3, topk, depth, kind)
    nodes = min(nodes, scores.shape[1] + 1)
    tree = tree_select(torch.tensor([7, 8, 9]), tokens, scores, parents, nodes=nodes, levels=depth + 1)
    for row, root in enumerate((7, 8, 9)):
        order = sorted(range(scores.shape[1]), key=lambda i: (-float(scores[row, i]), i))
        kept = [-1, *sorted(order[: nodes - 1])]
        assert tree.tokens[row].tolist() == [root, *(int(tokens[row, i]) for i in kept[1:])]
        assert tree.parents[row].tolist() == [0, *(kept.index(int(parents[row, i])) for i in kept[1:])]
    check_whole(tree)


def check_whole(tree: SelectedTree) -> None:
    """Depths, ancestors and words follow from the parents."""
    depths, ancestors = depths_and_ancestors(tree.parents)
    assert torch.equal(tree.depths, depths)
    assert torch.equal(tree.ancestors, ancestors)
    nodes = tree.tokens.shape[1]
    assert tree.words.shape == (*tree.tokens.shape, -(-nodes // 64))
    bits = (tree.words[:, :, :, None] >> torch.arange(64)) & 1
    assert torch.equal(bits.flatten(2)[:, :, :nodes].bool(), ancestors)
    assert int(bits.flatten(2)[:, :, nodes:].sum()) == 0


def test_a_child_that_scores_above_its_parent_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="above its parent"):
        tree_select(
            torch.tensor([1]), torch.tensor([[2, 3]]), torch.tensor([[-2.0, -1.0]]), torch.tensor([[-1, 0]]),
            nodes=2, levels=2,
        )  # fmt: skip


def test_parents_with_another_number_of_children_are_refused() -> None:
    tokens, scores, parents = history(1, 4, 2, "fine")
    with pytest.raises(UsageError, match="same number of children"):
        tree_select(torch.tensor([1]), tokens, scores, parents[:, :7], nodes=5, levels=3)


CASES = list(product(SHAPES, ["ties", "fine"]))
TestParity = parity("tree_select", agree, emulated=CASES, cpu=CASES, cuda=CASES)
