"""What adaptive control promises, against simulated drafters and machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.decode.control_worlds import (
    STEP,
    World,
    chain_plans,
    expected_tokens,
    flat,
    linear_cost,
    random_pair,
    random_world,
)
from tests.shares import by_default
from vocabforge.decode.control.adaptive import AdaptiveControl
from vocabforge.decode.interface import PLAIN_PLAN, Plan


def first(count: int) -> list[Any]:
    """Seeds, the first one by default."""
    return by_default(range(count), lambda seed: seed == 0)


def mostly(chosen: list[Plan]) -> Plan:
    return Counter(chosen).most_common(1)[0][0]


@pytest.mark.parametrize("chunk", first(4))
def test_close_to_the_best_fixed_plan(chunk: int) -> None:
    """After 200 cycles: at least 90% of the best fixed plan's tokens a second in each world, 96% on average."""
    shares = []
    for seed in range(8 * chunk, 8 * chunk + 8):
        world, plans = random_world(seed)
        control = AdaptiveControl(plans)
        world.run(control, 200)
        shares.append(world.run(control, 1200) / world.best(plans))
    assert min(shares) >= 0.90, shares
    assert sum(shares) / len(shares) >= 0.96, shares


@pytest.mark.parametrize("chunk", first(4))
def test_two_proposers_are_as_good_as_the_better_one(chunk: int) -> None:
    """90% of the best fixed arm of both in each world, 95% on average, and the loss a cycle falls."""
    early, late = [], []
    for seed in range(8 * chunk, 8 * chunk + 8):
        world, plans = random_pair(seed)
        control = AdaptiveControl(plans)
        early.append(world.run(control, 100) / world.best(plans))
        world.run(control, 100)
        late.append(world.run(control, 1200) / world.best(plans))
    assert min(late) >= 0.90, late
    assert sum(late) / len(late) >= 0.95, late
    assert sum(early) < sum(late)


@pytest.mark.parametrize("seed", first(4))
def test_finds_another_best_proposer(seed: int) -> None:
    """At once where the one in use becomes worse, within 1,200 cycles where the other one becomes better."""
    plans = [replace(plan, by=name) for name in "ab" for plan in chain_plans(5)]
    good = {"a": 0.8, "b": 0.3, "": 0.0}
    world = World(lambda plan: [good[plan.by]] * plan.levels, linear_cost(0.1, 0.1, 0.02), seed)
    control = AdaptiveControl(plans)
    world.run(control, 2000)
    assert mostly(world.chosen[-100:]).by == "a"
    good |= {"a": 0.3, "b": 0.8}
    world.run(control, 100)
    assert world.run(control, 200) >= 0.9 * world.best(plans)
    good |= {"a": 0.95}
    world.run(control, 1200)
    assert mostly(world.chosen[-100:]).by == "a"
    assert world.run(control, 500) >= 0.95 * world.best(plans)


@pytest.mark.parametrize("seed", first(4))
def test_drafts_with_each_proposer_where_it_has_something_to_draft(seed: int) -> None:
    """N-grams that match in three cycles of ten and another proposer that always drafts: each in its cycles."""
    plans = [replace(plan, by=name) for name in ("eagle", "n-gram") for plan in chain_plans(4)]
    good = {"eagle": 0.5, "n-gram": 0.85, "": 0.0}
    costs = {
        "eagle": linear_cost(0.05, 0.1, 0.02),
        "n-gram": linear_cost(0.0, 0.0, 0.05),
        "": linear_cost(0, 0, 0),
    }
    world = World(lambda plan: [good[plan.by]] * plan.levels, lambda plan: costs[plan.by](plan), seed)
    matches = np.random.default_rng(seed)
    control = AdaptiveControl(plans)
    world.run(control, 300, lambda: matches.random() < 0.3)
    world.chosen.clear()
    rate = world.run(control, 2000, lambda: matches.random() < 0.3)
    by = Counter(plan.by for plan in world.chosen)
    assert by["n-gram"] >= 0.25 * 2000
    assert by["eagle"] >= 0.6 * 2000
    best = {
        name: max((p for p in plans if p.by == name), key=lambda p: world.rate(p))
        for name in ("eagle", "n-gram")
    }
    shares = {"eagle": 0.7, "n-gram": 0.3}
    tokens = sum(share * expected_tokens(world.acceptance(best[name])) for name, share in shares.items())
    seconds = sum(share * world.cost(best[name]) for name, share in shares.items())
    assert rate >= 0.93 * tokens / seconds


@pytest.mark.parametrize("seed", first(3))
def test_switches_off_and_probes_cheaply(seed: int) -> None:
    """Off within 60 cycles where nothing pays; in 6,000 more, probes cost at most 5% (3% and the first start)."""
    plans = chain_plans(5)
    world = World(flat(0.1), linear_cost(0.3, 0.2, 0.1), seed)
    control = AdaptiveControl(plans)
    world.run(control, 60)
    assert mostly(world.chosen[-20:]) == PLAIN_PLAN
    rate = world.run(control, 6000)
    assert rate >= 0.95 / STEP
    probes = sum(plan != PLAIN_PLAN for plan in world.chosen[60:])
    assert 4 <= probes <= 300  # it does go on probing


@pytest.mark.parametrize("seed", first(3))
def test_returns_when_acceptance_rises(seed: int) -> None:
    """Back within 2,500 cycles after 3,000 useless ones (longest wait 1,024, a probe or two), then near the best."""
    plans = chain_plans(5)
    world = World(flat(0.05), linear_cost(0.1, 0.1, 0.05), seed)
    control = AdaptiveControl(plans)
    world.run(control, 3000)
    assert mostly(world.chosen[-20:]) == PLAIN_PLAN
    world.acceptance = flat(0.9)
    world.run(control, 2500)
    assert world.run(control, 500) >= 0.93 * world.best(plans)


@pytest.mark.parametrize("seed", first(3))
def test_follows_a_change_of_costs(seed: int) -> None:
    """A machine that becomes compute-bound (nodes cost 25 times as much) and free again; 90% of the best each time."""
    plans = chain_plans(6)
    world = World(flat(0.75), linear_cost(0.05, 0.03, 0.01), seed)
    control = AdaptiveControl(plans)
    world.run(control, 300)
    assert mostly(world.chosen[-100:]).levels >= 5
    world.cost = linear_cost(0.05, 0.03, 0.25)
    world.run(control, 300)
    assert world.run(control, 300) >= 0.9 * world.best(plans)
    world.cost = linear_cost(0.05, 0.03, 0.9)  # nothing pays any more
    world.run(control, 100)
    world.run(control, 300)
    assert world.run(control, 300) >= 0.9 * world.best(plans)
    world.cost = linear_cost(0.05, 0.03, 0.01)
    world.run(control, 1500)
    assert world.run(control, 300) >= 0.9 * world.best(plans)
