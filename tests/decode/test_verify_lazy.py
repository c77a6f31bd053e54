"""A distribution that is known token by token: the output has exactly the target's distribution, whatever was drawn
from it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.probability import AllBranches, all_ways
from vocabforge.core.errors import MismatchError
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, TokenHistory
from vocabforge.decode.tree import RowTree
from vocabforge.decode.verify import lazy as verify_lazy
from vocabforge.decode.verify import residual as verify_residual
from vocabforge.decode.verify.residual import RESIDUAL

P = (4, 3, 0, 1, 2)  # tenths
NOTHING = -1
# name -> psi in tenths; what is left to ten is nothing drawn
DISTRIBUTIONS: dict[str, dict[int, int]] = {
    "overlapping": {0: 1, 1: 5, 2: 2, 4: 1},
    "complete": {0: 2, 1: 3, 2: 1, 3: 1, 4: 3},
    "the target's own": {0: 4, 1: 3, 3: 1, 4: 2},
    "disjoint": {2: 7},
    "nothing at all": {},
    "below the target": {0: 2, 4: 1},
}


class Told:
    """A distribution that counts what it is asked."""

    def __init__(self, psi: Mapping[int, Any]) -> None:
        self._psi = psi
        self.asked: list[int] = []

    def probability(self, token: int) -> Any:
        self.asked.append(token)
        return self._psi.get(token, 0)


def tenths(numbers: Mapping[int, int]) -> dict[int, Fraction]:
    return {token: Fraction(number, 10) for token, number in numbers.items()}


def row_of(child: int, distribution: Told, chance: Any) -> RowTree:
    """A root with one child, or none; the child is a leaf without a distribution."""
    logits = torch.zeros(2, len(P))
    children = [[1], []] if child != NOTHING else [[], []]
    history = TokenHistory([0], len(P))
    return RowTree(
        [0, max(child, 0)], children, logits, SamplingParams(1.0), chance, history, {0: distribution}
    )


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.array([Fraction(number) for number in P], dtype=object)
    monkeypatch.setattr(verify_residual, "target_weights", lambda *args: weights.copy())


def first_distribution(psi: dict[int, Fraction]) -> tuple[list[Fraction], list[Told]]:
    """The exact distribution of the first token, over all draws and decisions."""
    distributions: list[Told] = []

    def run(chance: AllBranches) -> int:
        distribution = Told(psi)
        distributions.append(distribution)
        rest = 1 - sum(psi.values())
        cells = [*psi.items(), (NOTHING, rest)]
        child = cells[chance.choose([weight for _, weight in cells])][0]
        return RESIDUAL.walk(row_of(child, distribution, chance))[1][0]

    found = [Fraction(0)] * len(P)
    for weight, token in all_ways(run):
        found[token] += weight
    return found, distributions


@pytest.mark.usefixtures("fractions")
@pytest.mark.parametrize("draws", [0, 1, 2, 1000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_distribution_is_the_targets(name: str, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", draws)
    found, distributions = first_distribution(tenths(DISTRIBUTIONS[name]))
    assert found == [Fraction(number, 10) for number in P]
    assert all(
        len(set(distribution.asked)) >= len(distribution.asked) - 1 for distribution in distributions
    )  # the drafted one may come twice


@pytest.mark.usefixtures("fractions")
def test_a_node_without_a_child_takes_the_residual() -> None:
    """Where nothing was drawn the target's own distribution would be wrong: psi's tokens would come too often."""
    psi = tenths({0: 4, 1: 3})
    found = [Fraction(0)] * len(P)
    for weight, token in all_ways(lambda chance: RESIDUAL.walk(row_of(NOTHING, Told(psi), chance))[1][0]):
        found[token] += weight
    assert found == [0, 0, 0, Fraction(1, 3), Fraction(2, 3)]


@pytest.mark.usefixtures("fractions")
def test_an_accepted_child_is_returned() -> None:
    ways = dict[tuple[int, ...], Fraction]()
    for weight, walked in all_ways(lambda chance: RESIDUAL.walk(row_of(3, Told(tenths({3: 5})), chance))):
        ways[tuple(walked[0])] = ways.get(tuple(walked[0]), Fraction(0)) + weight
    assert ways == {(0,): Fraction(4, 5), (0, 1): Fraction(1, 5)}


@pytest.mark.usefixtures("fractions")
def test_a_child_of_probability_zero_is_refused() -> None:
    with pytest.raises(MismatchError, match="not drawn from the distribution"):
        RESIDUAL.walk(row_of(2, Told({}), AllBranches([])))


def test_rounding_alone_leaves_nothing() -> None:
    """Where no residual is left the target's own distribution is taken."""
    p = np.array([0.25, 0.75])
    chance = SeededChance(1)
    tokens = [verify_lazy.draw_residual(p, Told({0: 0.25, 1: 0.75}), chance) for _ in range(200)]
    assert 20 < tokens.count(0) < 90
