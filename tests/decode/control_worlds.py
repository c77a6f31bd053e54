"""Simulated drafters and machines for adaptive control: no clock, seeded chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vocabforge.decode.control.control import Control, CycleFigures
from vocabforge.decode.control.estimates import expected_by_length
from vocabforge.decode.interface import PLAIN_PLAN, Plan

STEP = 0.01  # seconds of a plain cycle


def expected_tokens(conditional: Sequence[float]) -> float:
    return expected_by_length(conditional)[-1]


def chain_plans(levels: int) -> list[Plan]:
    return [Plan(level, level + 1) for level in range(1, levels + 1)]


def tree_plans(levels: int, nodes: int) -> list[Plan]:
    return [Plan(level, max(level + 1, nodes * level // levels)) for level in range(1, levels + 1)]


@dataclass
class World:
    """A drafter and a machine: acceptance by level and plan, seconds by plan; both may change at any time."""

    acceptance: Callable[[Plan], list[float]]
    cost: Callable[[Plan], float]
    seed: int = 0
    noise: float = 0.05
    outliers: float = 0.01
    rows: int = 1
    chosen: list[Plan] = field(default_factory=list)
    tokens: float = 0.0  # expected, so that luck is no part of what a test judges
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def run(self, control: Control, cycles: int, match: Callable[[], bool] | None = None) -> float:
        """Expected tokens a second of these cycles; ``match`` tells of each whether n-grams have something to draft."""
        tokens = seconds = 0.0
        for _ in range(cycles):
            there = match is None or match()
            plan = control.plan(lambda plan, there=there: there or plan.by not in ("", "n-gram"))
            levels = self.acceptance(plan)
            assert len(levels) == plan.levels
            draws = self.rng.random((self.rows, plan.levels + 1))
            accepted = [next((j for j, a in enumerate(levels) if row[j] >= a), plan.levels) for row in draws]
            cost = self.cost(plan)
            measured = cost * (1 + self.noise * self.rng.random())
            if self.rng.random() < self.outliers:
                measured *= 10
            control.observe(CycleFigures(plan, accepted, measured))
            tokens += expected_tokens(levels)
            seconds += cost
            self.chosen.append(plan)
        self.tokens += tokens
        self.seconds += seconds
        return tokens / seconds

    def rate(self, plan: Plan) -> float:
        """Expected tokens a second of one plan."""
        return expected_tokens(self.acceptance(plan)) / self.cost(plan)

    def best(self, plans: Sequence[Plan]) -> float:
        """Tokens a second of the best fixed plan."""
        return max(map(self.rate, [PLAIN_PLAN, *plans]))


def linear_cost(start: float, level: float, node: float) -> Callable[[Plan], float]:
    return lambda plan: (
        STEP * (1 + (start if plan.levels else 0) + level * plan.levels + node * (plan.nodes - 1))
    )


def flat(acceptance: float) -> Callable[[Plan], list[float]]:
    return lambda plan: [acceptance] * plan.levels


def random_world(seed: int) -> tuple[World, list[Plan]]:
    """Chains and trees, rising and falling acceptance, cheap and dear drafting, one to four rows."""
    rng = np.random.default_rng([5, seed])
    levels = int(rng.choice([1, 3, 5, 8]))
    tree = bool(rng.random() < 0.5)
    plans = tree_plans(levels, 8 * levels) if tree else chain_plans(levels)
    first, slope = rng.random(), rng.uniform(-0.08, 0.04)
    wide = rng.uniform(0, 0.3) if tree else 0.0  # what the nodes of the full tree add to a level's acceptance

    def acceptance(plan: Plan) -> list[float]:
        share = plan.nodes / plans[-1].nodes
        return [
            float(np.clip(first + slope * j - wide * (1 - share), 0.01, 0.98)) for j in range(plan.levels)
        ]

    node = float(rng.choice([0, 0.02, 0.1, 0.3])) / (8 if tree else 1)
    cost = linear_cost(float(rng.choice([0, 0.1, 0.5])), float(rng.choice([0.02, 0.1, 0.3, 0.6])), node)
    return World(acceptance, cost, seed, rows=int(rng.choice([1, 1, 4]))), plans


def random_pair(seed: int) -> tuple[World, list[Plan]]:
    """Two proposers, ``a`` and ``b``, of random worlds; the machine and the rows are the first one's."""
    made = {name: random_world(seed + offset) for name, offset in (("a", 0), ("b", 1000))}
    plans = [replace(plan, by=name) for name, (_, own) in made.items() for plan in own]

    def of(plan: Plan) -> World:
        return made[plan.by or "a"][0]

    return World(
        lambda plan: of(plan).acceptance(plan), lambda plan: of(plan).cost(plan), seed, rows=made["a"][0].rows
    ), plans
