"""Estimates of an adaptive control: the tokens that a plan commits, and the cost of its cycle.

Plans are identified by their index in a list: 0 is plain decoding, then those that draft, by (levels, nodes).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from ..interface import Plan

SECONDS = (1e-9, 1e9)  # plausible range of a cycle
PRIOR, WEIGHT = 0.7, 2.0  # prior acceptance, and how many drafts it counts for
SHRINK = 8.0  # cycles that the level estimate counts for, against a plan's own mean
WINDOW = 32  # measurements kept per plan
EVERY = 4  # cycles after which the mean of a full window is recomputed
CLIP = 1.5  # measurements count for at most this many times their median
OPTIMISM = 0.1  # share by which the cost of a rarely measured plan is lowered


def expected_by_length(conditional: Sequence[float]) -> list[float]:
    """Return the expected committed tokens of chains of 0, 1, .. g draft tokens.

    They are ``1 + R_1 + .. + R_j`` with R the cumulative products; see docs/speculation-theory.md, equation
    1. ``conditional`` (g,) is P(position j is accepted | those before it are).
    """
    return list(accumulate(accumulate(conditional, mul), initial=1))


class TokenEstimates:
    """Expected committed tokens of a row's cycle, by plan, from accepted counts that fade.

    Acceptance is counted by level, over all plans of one width (nodes per level, to a factor of two): shorter
    chains are prefixes of longer ones, and trees nearly so. A level that no recent plan drafted takes the
    estimate of the level above it; widths are shrunk to the estimate over all. Each plan's own mean is also
    kept and shrunk to the level estimate. If plans contain each other, the larger never expects fewer tokens
    (isotonic regression).
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._levels = [plan.levels for plan in plans]
        widths = [round(math.log2((plan.nodes - 1) / plan.levels)) for plan in plans if plan.levels]
        groups = {width: group for group, width in enumerate(sorted(set(widths)))}
        self._group = [0, *(groups[width] for width in widths)]
        most, count = max(self._levels), max(len(groups), 1)
        # Fading counts: drafts by width and level, cycles and tokens by plan.
        self._tested = [[0.0] * most for _ in range(count)]
        self._passed = [[0.0] * most for _ in range(count)]
        self._cycles, self._tokens = [0.0] * len(plans), [0.0] * len(plans)
        nodes = [plan.nodes for plan in plans]
        self._nested = nodes == sorted(nodes)

    def fade(self, factor: float) -> None:
        """Scale past evidence by ``factor`` (0 to 1)."""
        for counts in (*self._tested, *self._passed, self._cycles, self._tokens):
            counts[:] = [factor * count for count in counts]

    def add(self, place: int, accepted: Sequence[int]) -> None:
        """Add one cycle of a plan that drafts; ``accepted`` has one number per row."""
        group, levels = self._group[place], self._levels[place]
        tested, passed = self._tested[group], self._passed[group]
        for count in accepted:
            for level in range(count):
                passed[level] += 1
            for level in range(min(count + 1, levels)):
                tested[level] += 1
        self._tokens[place] += sum(accepted) + len(accepted)
        self._cycles[place] += len(accepted)

    def conditional(self) -> list[list[float]]:
        """Return the acceptance by width and level, given that the path reached the level above."""
        pooled, above = [], PRIOR
        for tested, passed in zip(zip(*self._tested), zip(*self._passed)):  # counts of one level, by width
            above = (sum(passed) + WEIGHT * above) / (sum(tested) + WEIGHT)
            pooled.append(above)
        if len(self._tested) == 1:
            return [pooled]
        return [
            [(b + WEIGHT * p) / (a + WEIGHT) for a, b, p in zip(tested, passed, pooled)]
            for tested, passed in zip(self._tested, self._passed)
        ]

    def by_plan(self) -> list[float]:
        """Return the expected tokens of each plan, the target's own included; 1 for plain decoding."""
        lengths = [expected_by_length(levels) for levels in self.conditional()]
        weights = [cycles + SHRINK for cycles in self._cycles]
        means = [
            (self._tokens[place] + SHRINK * lengths[group][self._levels[place]]) / weights[place]
            for place, group in enumerate(self._group)
        ]
        return isotonic(means, weights) if self._nested else means


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the rising sequence nearest to ``values`` in weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights):
        size = 1
        while blocks and blocks[-1][0] > value:
            mean, other, count = blocks.pop()
            value = (mean * other + value * weight) / (other + weight)
            weight, size = weight + other, size + count
        blocks.append((value, weight, size))
    return [mean for mean, _, size in blocks for _ in range(size)]


class CostEstimates:
    """Seconds of a cycle, by plan.

    A plan's cost is the mean of its last measurements, with outliers clipped. While the plan is not used, its
    cost is assumed to change like that of the plan in use (another load on the machine, a longer context),
    until it is measured again. Rarely measured plans follow ``a + b levels + c nodes``, fitted to the others.
    """

    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None = None) -> None:
        self._plans, self.given = plans, costs is not None
        self._costs = (
            {place: costs[plan] for place, plan in enumerate(plans) if plan in costs} if costs else {}
        )
        self._recent = [deque[float](maxlen=WINDOW) for _ in plans]
        self._seen = [0] * len(plans)  # cycle of each plan's last measurement
        self._cycle = 0
        self._once: set[int] = set()  # plans measured once
        self._all: list[float] | None = None  # cached result of ``by_plan``

    def add(self, place: int, seconds: float) -> None:
        """Add one measurement, in seconds above 0."""
        if self.given:
            return
        self._cycle += 1
        recent, before, away = self._recent[place], self._costs.get(place), self._cycle - self._seen[place]
        steady = len(recent) == WINDOW and away == 1
        if place in self._once:
            recent.clear()
            self._once.remove(place)
        elif before is None:
            self._once.add(place)  # the first cycle allocates and compiles, so the second replaces it
        elif away > WINDOW:  # an old mean counts as one measurement
            recent.clear()
            recent.append(before)
        recent.append(seconds)
        self._seen[place] = self._cycle
        if steady and self._cycle % EVERY:
            return
        self._costs[place] = cost = clipped_mean(recent)
        if steady and before is not None:
            for other in self._costs:
                if other != place:
                    self._costs[other] = min(max(self._costs[other] * cost / before, SECONDS[0]), SECONDS[1])
        self._all = None

    def forget(self, keep: Collection[int]) -> None:
        """Forget outdated costs: all except those of plain decoding and ``keep``."""
        self._costs = {place: self._costs[place] for place in {0, *keep} if place in self._costs}
        self._once &= set(self._costs)
        for place, recent in enumerate(self._recent):
            most = max(WINDOW // 4, 1) if place in self._costs else 0
            while len(recent) > most:
                recent.popleft()
        self._all = None

    def by_plan(self) -> list[float]:
        """Return the seconds of each plan; 0 if nothing is known yet."""
        if self._all is None:
            self._all = self._estimate()
        return self._all

    def of(self, place: int) -> float:
        """Return the measured seconds of one plan; 0 if it was not measured."""
        return self._costs.get(place, 0.0)

    def _estimate(self) -> list[float]:
        seconds = [self._costs.get(place, 0.0) for place in range(len(self._plans))]
        if 0 not in self._costs:
            return seconds
        unsure = [place for place in range(1, len(seconds)) if not self._sure(place)]
        if unsure:
            sure = {plan: seconds[place] for place, plan in enumerate(self._plans) if place not in unsure}
            line = fit_line(sure, seconds[0])
            for place in unsure:
                guess = line(self._plans[place]) * (1 - OPTIMISM)
                seconds[place] = min(guess, self._costs.get(place, guess))
        return seconds

    def _sure(self, place: int) -> bool:
        """Return whether a cost is given or measured twice after the first cycle; once may be a pause."""
        return place in self._costs and (self.given or len(self._recent[place]) > 1)


def clipped_mean(values: Sequence[float]) -> float:
    """Return the mean of ``values``, each clipped to ``CLIP`` times their (lower) median.

    The mean, because tokens per second are E[tokens] / E[seconds]; clipped, because one pause is not a plan's
    cost.
    """
    most = CLIP * sorted(values)[(len(values) - 1) // 2]
    return sum([min(value, most) for value in values]) / len(values)


def fit_line(costs: Mapping[Plan, float], plain: float) -> Callable[[Plan], float]:
    """Fit ``plain + a + b levels + c (nodes - 1)``, with a, b, c at least 0, to plans that draft.

    The fit is by least squares. If the plans do not determine a, b and c (one plan; levels and nodes in
    proportion), the solution with the smallest norm is used.
    """
    drafting = [plan for plan in costs if plan.levels]
    if not drafting:
        return lambda plan: plain
    most_levels, most_nodes = max(plan.levels for plan in drafting), max(plan.nodes for plan in drafting) - 1

    def features(plan: Plan) -> list[float]:
        return [1.0, plan.levels / most_levels, (plan.nodes - 1) / most_nodes]

    rows = np.array([features(plan) for plan in drafting])  # (n, 3)
    excess = np.array([costs[plan] - plain for plan in drafting])
    slopes, used = np.zeros(3), [0, 1, 2]
    while used:
        solution = np.linalg.lstsq(rows[:, used], excess, rcond=None)[0]
        if solution.min() >= 0:
            slopes[used] = solution
            break
        used.pop(int(solution.argmin()))
    return lambda plan: plain + float(np.dot(slopes, features(plan)))
