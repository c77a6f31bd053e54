"""What adaptive control learns from: acceptance by level and plan, seconds by plan."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.decode.control import estimates
from vocabforge.decode.control.estimates import (
    CostEstimates,
    TokenEstimates,
    expected_by_length,
    fit_line,
    isotonic,
)
from vocabforge.decode.interface import PLAIN_PLAN, Plan

CHAINS = [PLAIN_PLAN, *(Plan(n, n + 1) for n in range(1, 5))]


@pytest.fixture(autouse=True)
def _plain_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known beforehand, and nothing is clipped."""
    given = {
        "PRIOR": 0.5,
        "WEIGHT": 1e-9,
        "SHRINK": 1e-9,
        "WINDOW": 4,
        "EVERY": 1,
        "CLIP": 10.0,
        "OPTIMISM": 0.0,
    }
    for name, value in given.items():
        monkeypatch.setattr(estimates, name, value)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 11).map(lambda n: Fraction(n, 12)), min_size=1, max_size=6))
def test_expected_tokens_are_those_of_all_outcomes(conditional: list[Fraction]) -> None:
    """Formula (1) of docs/speculation-theory.md."""
    total = Fraction(0)
    for outcome in itertools.product([True, False], repeat=len(conditional)):
        weight = math.prod(p if happens else 1 - p for happens, p in zip(outcome, conditional))
        total += weight * (1 + next((j for j, happens in enumerate(outcome) if not happens), len(outcome)))
    assert expected_by_length(conditional)[-1] == total


def test_conditional_acceptance_is_accepted_over_tested() -> None:
    found = TokenEstimates(CHAINS)
    for accepted in (0, 1, 1, 2, 4, 4):  # of 4 drafted
        found.add(4, [accepted])
    assert found.conditional()[0] == pytest.approx([5 / 6, 3 / 5, 2 / 3, 1.0])
    assert found.by_plan()[4] == pytest.approx(1 + 12 / 6)
    assert found.by_plan()[1] == pytest.approx(1 + 5 / 6)
    assert found.by_plan()[0] == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_isotonic_is_the_nearest_rising_sequence(pairs: list[tuple[int, int]]) -> None:
    """Against every rising sequence on a grid: none is nearer."""
    values, weights = zip(*pairs)

    def distance(found: tuple[float, ...] | list[float]) -> float:
        return sum(w * (f - v) ** 2 for f, v, w in zip(found, values, weights))

    found = isotonic(values, weights)
    assert found == sorted(found)
    grid = [x / 4 for x in range(17)]
    rivals = itertools.combinations_with_replacement(grid, len(values))
    assert distance(found) <= min(map(distance, rivals)) + 1e-9


def test_the_line_goes_through_costs_that_lie_on_one() -> None:
    def cost(plan: Plan) -> float:
        return 1.0 + 0.3 + 0.2 * plan.levels + 0.01 * (plan.nodes - 1)

    seen = [Plan(1, 10), Plan(2, 60), Plan(5, 20), Plan(6, 60)]
    line = fit_line({plan: cost(plan) for plan in seen}, 1.0)
    for plan in (Plan(3, 30), Plan(4, 12)):
        assert line(plan) == pytest.approx(cost(plan))
    falling = fit_line(
        {Plan(1, 2): 3.0, Plan(2, 40): 2.0}, 1.0
    )  # noise: no plan may seem to cost less for more
    assert falling(Plan(2, 80)) >= falling(Plan(1, 2)) >= 1.0


def test_unused_plans_move_with_the_one_in_use() -> None:
    costs = CostEstimates(CHAINS)
    for place, seconds in [(0, 1.0), (4, 2.0)]:
        for _ in range(5):
            costs.add(place, seconds)
    for _ in range(4):
        costs.add(4, 6.0)
    assert costs.by_plan()[4] == pytest.approx(6.0)
    assert costs.by_plan()[0] == pytest.approx(3.0)
    for _ in range(3):  # measured again: what was assumed counts for one
        costs.add(0, 1.0)
    assert costs.by_plan()[0] == pytest.approx((3.0 + 3 * 1.0) / 4)
    assert costs.by_plan()[4] == pytest.approx(6.0)  # a few cycles of a probe move nothing else
