"""Sampled verification of point masses on the device: the decoder's decisions and distribution, the same bits
everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.decode.probability import AllBranches, all_ways, exactly, fractions, p_value
from tests.ops.parity import assert_same, moved, parity
from tests.ops.trees_support import random_parents
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import Chance, SeededChance, TokenHistory
from vocabforge.decode.tree import RowTree, Walk, children_of, walk_down
from vocabforge.decode.verify.point import choose_point_mass
from vocabforge.ops.tree_verify_point import PointVerdict, tree_verify_point, walk_point

# rows, nodes, levels, vocabulary
SHAPES = [(2, 1, 3, 5), (4, 2, 1, 3), (4, 12, 3, 4), (1, 70, 6, 5), (1, 7, 2, 9000)]
LARGE = [(3, 60, 6, 5), (1, 256, 5, 3), (2, 30, 4, 20_000)]


def trees(rows: int, nodes: int, levels: int, vocab: int, seed: int = 0) -> dict[str, Any]:
    """Random trees whose siblings may be alike, and distributions with zeros; a few nodes have no distribution, a few
    are dead."""
    stream = torch.Generator().manual_seed(seed)
    weights = (torch.rand(rows, nodes, vocab, generator=stream) * 64).ceil() / 64
    weights *= torch.rand(rows, nodes, vocab, generator=stream) < 0.8
    weights *= torch.rand(rows, nodes, 1, generator=stream) < 0.95
    alive = torch.rand(rows, nodes, generator=stream) < 0.95
    alive[:, 0] = True
    return {
        "tokens": torch.randint(min(vocab, 10), (rows, nodes), generator=stream),
        "parents": random_parents(rows, nodes, levels, stream),
        "alive": alive,
        "weights": weights,
        "seeds": torch.randint(2**62, (rows,), generator=stream),
        "draws": torch.randint(9, (rows,), generator=stream),
        "levels": levels,
    }


def skipped(seed: int, count: int) -> SeededChance:
    """A stream whose first numbers are used up."""
    chance = SeededChance(seed)
    for _ in range(count):
        chance._uniform()
    return chance


def decoder_walk(tree: dict[str, Any], row: int, chance: Chance, exact: bool = False) -> Walk:
    """One row by the decoder's own walk, with the given distributions in place of logits."""
    distributions = tree["weights"][row].double().numpy()
    parents, alive = tree["parents"][row].tolist(), tree["alive"][row].tolist()
    row_tree = RowTree(
        tree["tokens"][row].tolist(), children_of(parents, alive), torch.zeros(1), SamplingParams(1.0), chance,
        TokenHistory([0], distributions.shape[1]),
    )  # fmt: skip

    def choose(row: RowTree, node: int, path: list[int]) -> tuple[int | None, int]:
        return choose_point_mass(
            row, node, fractions(distributions[node]) if exact else distributions[node].copy()
        )

    return walk_down(row_tree, choose)


def read(verdict: PointVerdict, row: int) -> tuple[list[int], list[int]]:
    """Accepted nodes and tokens of a row, which must all have a distribution."""
    depth, good, *tokens = verdict.numbers[row].tolist()
    path = verdict.path[row].tolist()
    assert good == len(path)
    assert set(path[depth:]) == {path[depth]}
    assert set(tokens[depth:]) == {tokens[depth]}
    return path[: depth + 1], tokens[: depth + 1]


def valid(tree: dict[str, Any]) -> dict[str, Any]:
    """The same with a distribution everywhere."""
    return tree | {"weights": torch.where(tree["weights"].sum(-1, keepdim=True) > 0, tree["weights"], 1.0)}


def agree(shape: tuple[int, ...], alive: bool, backend: str, device: str) -> None:
    tree = moved(trees(*shape, seed=int(alive)) | ({"alive": None} if alive else {}), device)
    got, expected = (tree_verify_point(**tree, backend=each) for each in (backend, "reference"))
    assert_same(got, expected)


@pytest.mark.parametrize("shape", [(300, 1, 2, 6), (300, 12, 3, 4), (100, 40, 5, 3)], ids=str)
def test_the_decisions_are_those_of_the_decoder(shape: tuple[int, int, int, int]) -> None:
    tree = valid(trees(*shape))
    verdict, lengths = tree_verify_point(**tree), set()
    for row in range(shape[0]):
        chance = skipped(int(tree["seeds"][row]), int(tree["draws"][row]))
        nodes, tokens = decoder_walk(tree, row, chance)
        assert read(verdict, row) == (nodes, tokens)
        lengths.add(len(nodes))
        ours = skipped(int(tree["seeds"][row]), int(verdict.draws_after[row]))
        assert ours._uniform() == chance._uniform()  # as many numbers were taken
    assert shape[1] == 1 or len(lengths) > 2


def test_a_node_without_a_distribution_ends_the_walk() -> None:
    tree = trees(1, 4, 3, 3)
    tree |= {"tokens": torch.tensor([[0, 1, 2, 2]]), "parents": torch.tensor([[0, 0, 1, 2]]), "alive": None}
    tree["weights"] = torch.tensor([[[0.0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]])
    verdict = tree_verify_point(**tree)
    assert verdict.path.tolist() == [[0, 1, 2, 2]]
    assert verdict.numbers.tolist() == [[2, 2, 1, 2, 0, 0]]
    assert verdict.draws_after.tolist() == [int(tree["draws"]) + 2]


class Recorded(AllBranches):
    """Notes a number of the unit interval that takes the same way: the middle of the way's part."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(script)
        self.numbers: list[float] = []

    def happens(self, weight: Any, total: Any) -> bool:
        p = exactly(weight) / exactly(total)
        found = super().happens(weight, total)
        self.numbers.append(float(p / 2 if found else (1 + p) / 2))
        return found

    def draw(self, weights: np.ndarray[Any, Any]) -> int:
        found = super().draw(weights)
        shares = [exactly(weight) for weight in weights]
        self.numbers.append(float((sum(shares[:found], Fraction(0)) + shares[found] / 2) / sum(shares)))
        return found


@pytest.mark.parametrize("seed", range(6))
def test_the_output_has_exactly_the_target_s_distribution(seed: int) -> None:
    """Every way that the decisions can go: the op goes it, too, and all ways together have the distribution of the
    target."""
    tree = valid(trees(1, 7, 2, 4, seed=seed))
    ways = list(all_ways(lambda chance: (chance, decoder_walk(tree, 0, chance, exact=True)), Recorded))
    numbers = torch.zeros(len(ways), 7, dtype=torch.float64)
    for way, (_, (chance, _)) in enumerate(ways):
        numbers[way, : len(chance.numbers)] = torch.tensor(chance.numbers, dtype=torch.float64)
    many = {
        name: tree[name].expand(len(ways), *tree[name].shape[1:])
        for name in ("tokens", "parents", "weights", "alive")
    }
    verdict = walk_point(many["tokens"], many["parents"], many["weights"], numbers, 2, many["alive"])
    distribution: dict[tuple[int, ...], Fraction] = {}
    for way, (weight, (chance, walked)) in enumerate(ways):
        assert read(verdict, way) == walked
        assert int(verdict.draws_after[way]) == len(chance.numbers)
        distribution[tuple(walked[1])] = distribution.get(tuple(walked[1]), Fraction(0)) + weight
    assert sum(distribution.values()) == 1
    root = fractions(tree["weights"][0, 0].double().numpy())
    for token in range(4):
        assert sum(p for tokens, p in distribution.items() if tokens[0] == token) == root[token] / root.sum()


def repeated(rows: int) -> tuple[dict[str, Any], dict[int, float]]:
    """One small tree many times with different streams, and the distribution of its first token."""
    tree = valid(trees(1, 7, 2, 4, seed=3))
    many = {
        name: one.expand(rows, *one.shape[1:]) if torch.is_tensor(one) else one for name, one in tree.items()
    }
    many |= {"seeds": torch.arange(rows) + 17, "draws": torch.full((rows,), 2)}
    distribution = tree["weights"][0, 0].double()
    return many, dict(enumerate((distribution / distribution.sum()).tolist()))


def test_draws_follow_the_distribution() -> None:
    many, distribution = repeated(20_000)
    assert p_value(Counter(tree_verify_point(**many).numbers[:, 2].tolist()), distribution) > 1e-4


CASES = [
    *product(SHAPES, [False, True]),
    *(pytest.param(case, marks=pytest.mark.proof) for case in product(LARGE, [False, True])),
]
TestParity = parity(
    "tree_verify_point",
    agree,
    emulated=CASES,
    cpu=product([*SHAPES, *LARGE[:2]], [False, True]),
    cuda=product([*SHAPES, *LARGE, (1, 60, 6, 128_256)], [False, True]),
)


def test_the_walk_takes_a_tensor_of_numbers_in_order() -> None:
    tokens, parents = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 0]])
    weights = torch.tensor([[[1.0, 1.0], [0, 1], [1, 0]]])

    def tokens_for(*numbers: float) -> list[int]:
        given: Tensor = torch.tensor([numbers], dtype=torch.float64)
        return walk_point(tokens, parents, weights, given, 1, None).numbers[0].tolist()

    assert tokens_for(0.49, 0.5, 0.0) == [1, 2, 1, 1]
    # The second sibling has the token that the first has lost: it never agrees, and takes a number.
    assert tokens_for(0.5, 0.0, 0.9) == [0, 2, 0, 0]
