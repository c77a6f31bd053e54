"""Controls: what they choose, from what they are told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.control_worlds import chain_plans, linear_cost
from vocabforge.decode.control import adaptive
from vocabforge.decode.control.adaptive import AdaptiveControl
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.interface import PLAIN_PLAN, Plan


def test_given_costs_make_the_clock_irrelevant() -> None:
    plans, cost = chain_plans(5), linear_cost(0.1, 0.1, 0.1)
    chosen = []
    for noise in (0.0, 3.0):
        control = AdaptiveControl(plans, {plan: cost(plan) for plan in [PLAIN_PLAN, *plans[1:]]})
        rng, seen = np.random.default_rng(0), []
        for _ in range(500):
            plan = control.plan()
            accepted = next((j for j in range(plan.levels) if rng.random() > 0.6), plan.levels)
            seconds = cost(plan) * (1 + noise * float(np.random.random()))
            control.observe(CycleFigures(plan, [accepted], seconds))
            seen.append(plan)
        chosen.append(seen)
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 1  # it did choose


_seconds = st.one_of(st.floats(1e-6, 10), st.sampled_from([0.0, -1.0, math.nan, math.inf, 1e-300, 1e-9, 1e9]))
_plans = st.lists(
    st.builds(
        lambda a, b, by: Plan(a, a + b, by), st.integers(1, 9), st.integers(1, 60), st.sampled_from(["", "x"])
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(
    _plans,
    st.lists(
        st.tuples(st.lists(st.integers(-2, 12), max_size=3), _seconds, st.integers(0, 9), st.booleans()),
        max_size=80,
    ),
    st.integers(1, 3),
)
def test_whatever_is_observed_the_plan_is_allowed(plans, cycles, wait):
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # plain decoding again after a few cycles, nothing carried over
        patch.setattr(adaptive, "RENEW", wait)
        patch.setattr(adaptive, "CARRY", 0.0)
        patch.setattr(adaptive, "HALF_LIFE", 1.5)
        patch.setattr(adaptive, "STALE", 2.0)
        patch.setattr(adaptive, "DOUBT", 1.0)
        control = AdaptiveControl(plans)
        for accepted, seconds, other, begin in cycles:
            if begin:
                control.begin()
            plan = control.plan()
            assert plan == PLAIN_PLAN or plan in plans
            control.observe(CycleFigures(plan if other else Plan(99, 100), accepted, seconds))
            for found in control.estimates().values():
                assert 1 <= found.tokens <= 10
                assert 0 <= found.seconds < math.inf
                assert math.isfinite(found.rate)
