"""Adaptive control, a bandit: each cycle uses the arm that may commit the most tokens per second.

An arm is a plan of one proposer, or plain decoding. A cycle takes the best arm that has anything to draft, so
n-grams draft if the text repeats itself, and another proposer drafts otherwise. Drafting as much as pays off,
down to nothing, is the idea of Nightjar (Li et al. 2025). BanditSpec (Hou et al. 2025) chooses a drafter and
its length by upper confidence bounds. Here, the bound is on tokens per measured second, evidence fades as in
discounted UCB (Garivier and Moulines 2011), arms of one proposer share evidence (``estimates.py``), and
exploration may lose at most a set share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..interface import PLAIN_PLAN, Plan
from .control import CycleFigures, Estimate, Ready, distinct
from .estimates import SECONDS, CostEstimates, TokenEstimates

HALF_LIFE = 64.0  # cycles after which an accepted or rejected draft counts half
CARRY = 0.5  # share at which the past counts when new requests begin
CHANGE = 1.25  # the cost of the arm in use has changed if it rose or fell by this factor
FIRST = (
    3  # cycles to measure the largest plan of each proposer, and plain decoding, before any choice by cost
)
BLOCK = 4  # cycles between decisions
# Cycles after which plain decoding is measured again: its seconds decide whether drafting pays off.
RENEW = 128
STALE = 256.0  # cycles after which the evidence on an arm counts half,
DOUBT = 1024.0  # and after which its cost may have fallen by half
SHARED = 0.25  # weight of a cycle for the other arms of its proposer
# Prior variance of committed tokens, and how many cycles it counts for.
SPREAD, WEIGHT = 1.0, 2.0
SHARE = 0.02  # maximum share of the time that exploration may lose,
AHEAD = 32  # and plain cycles that it may lose before that time has passed


class _Arms:
    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None) -> None:
        self.plans = [PLAIN_PLAN, *plans]
        self.tokens = TokenEstimates(self.plans)
        self.costs = CostEstimates(self.plans, costs)
        # By arm, fading: rows of cycles, and sums of their tokens and squared tokens.
        self.count, self.sum, self.squares = ([0.0] * len(self.plans) for _ in range(3))
        self.used = [0] * len(self.plans)  # last cycle of each arm

    def fade(self, factor: float) -> None:
        """Scale the evidence for the bounds by ``factor``."""
        for figures in (self.count, self.sum, self.squares):
            figures[:] = [figure * factor for figure in figures]

    def add(self, place: int, accepted: Sequence[int], cycle: int) -> None:
        """Add one cycle of an arm that drafts."""
        self.tokens.fade(0.5 ** (1 / HALF_LIFE + (cycle - max(self.used) - 1) / STALE))
        self.fade(0.5 ** (1 / HALF_LIFE))
        self.used[place] = cycle
        self.tokens.add(place, accepted)
        for count in accepted:
            self.count[place] += 1
            self.sum[place] += count + 1
            self.squares[place] += (count + 1) ** 2

    def known(self) -> list[Estimate]:
        """Return the expected tokens and seconds of each arm."""
        return list(map(Estimate, self.tokens.by_plan(), self.costs.by_plan()))

    def bounds(self, known: Sequence[Estimate], cycle: int) -> list[float]:
        """Return the tokens per second that each arm may reach; plain decoding's are certain."""
        together, log = sum(self.count), math.log(1 + min(cycle, 2 * STALE))
        bounds = [known[0].rate]
        for place in range(1, len(self.plans)):
            count, mean = self.count[place], self.sum[place] / max(self.count[place], 1e-9)
            variance = (self.squares[place] - count * mean**2 + WEIGHT * SPREAD) / (count + WEIGHT)
            evidence = count + SHARED * (together - count)
            more = math.sqrt(max(variance, 0.0) * log / max(evidence, 1e-9))
            cheaper = 1 + (cycle - self.used[place]) / DOUBT
            tokens, seconds = known[place]
            bounds.append((tokens + more) * cheaper / seconds if seconds else 0.0)
        return bounds


class AdaptiveControl:
    """Control that chooses the arm with the largest bound among those that have anything to draft.

    The plans depend only on the observations.

    Args:
        plans: the plans of all proposers; ``by`` names the proposer of each. Plain decoding is always added.
        costs: seconds by plan, including plain decoding. Nothing is measured then, and the same requests give
            the same plans.
    """

    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None = None) -> None:
        self._groups: list[_Arms] = []
        for name in dict.fromkeys(plan.by for plan in plans) or [""]:
            own = {plan for plan in plans if plan.by == name and plan.levels}
            drafting = sorted(own, key=lambda plan: (plan.levels, plan.nodes))
            self._groups.append(_Arms(drafting if costs else distinct(drafting), costs))
        # Plain decoding, which all groups have, then the others: each a group and an index in it.
        self._arms = [(0, 0)]
        for number, group in enumerate(self._groups):
            self._arms += [(number, place) for place in range(1, len(group.plans))]
        self.plans = [self._groups[number].plans[place] for number, place in self._arms]
        self._numbers = {plan: arm for arm, plan in enumerate(self.plans)}
        self._cycle = self._since = 0  # cycles in all, and since the last decision
        self._decided: list[Estimate] = []  # estimates of the last decision
        self._budget: float | None = None  # seconds that exploration may still lose
        self._references: dict[int, float] = {}  # seconds of the arms in use, to detect changes
        # Measure the largest plan of each proposer and plain decoding first: other costs are between them.
        largest = [self._numbers[group.plans[-1]] for group in self._groups if group.plans[1:]]
        self._unseen = [] if costs else [arm for arm in (*largest, 0) for _ in range(FIRST)]
        self._plain = 0  # last cycle of plain decoding
        self._order = [0]  # arms, the largest bound first
        self._open = list(range(len(self.plans)))  # arms that had something to draft
        if costs:
            self._decide(0)

    def begin(self) -> None:
        """Start new requests: their texts may be easier or harder, so the past counts less."""
        for group in self._groups:
            group.tokens.fade(CARRY)
            group.fade(CARRY)

    def plan(self, ready: Ready | None = None) -> Plan:
        self._open = [
            arm for arm, plan in enumerate(self.plans) if ready is None or not plan.levels or ready(plan)
        ]
        return self.plans[next(arm for arm in (*self._unseen, *self._order, 0) if arm in self._open)]

    def estimates(self) -> dict[Plan, Estimate]:
        """Return the current estimates, by plan."""
        return dict(zip(self.plans, self._known()))

    def observe(self, cycle: CycleFigures) -> None:
        """Learn from a cycle; unknown plans and implausible seconds are ignored."""
        arm = self._numbers.get(cycle.plan)
        if arm is None or len(self.plans) == 1:
            return
        self._cycle += 1
        number, place = self._arms[arm]
        accepted = [min(max(count, 0), cycle.plan.levels) for count in cycle.accepted]
        if place and accepted:
            self._groups[number].add(place, accepted, self._cycle)
        timed = SECONDS[0] <= cycle.seconds <= SECONDS[1]
        if timed:
            for group in [self._groups[number]] if place else self._groups:
                group.costs.add(place, cycle.seconds)
            if arm in self._unseen:
                self._unseen.remove(arm)
        if not place:
            self._plain = self._cycle
        elif self._cycle - self._plain > RENEW and 0 not in self._unseen and not self._groups[0].costs.given:
            self._unseen += [0] * FIRST
        self._pay(arm, 1 + sum(accepted) / max(len(accepted), 1))
        self._since += 1
        if self._since >= BLOCK and 0 not in self._unseen:
            self._decide(arm)

    def _pay(self, arm: int, committed: float) -> None:
        """Charge a cycle's loss against the best arm to the exploration budget."""
        if not self._decided:
            return
        best = max(self._open, key=lambda candidate: self._decided[candidate].rate)
        known = self._decided if arm == best else self._known()
        most, lost = AHEAD * known[0].seconds, 0.0
        if known[arm].rate < (rate := max(known[candidate].rate for candidate in self._open)):
            lost = known[arm].seconds - committed / rate
        before = most if self._budget is None else self._budget
        self._budget = min(before + SHARE * known[arm].seconds - lost, most)

    def _decide(self, arm: int) -> None:
        """Rank the arms; ``arm`` is the last one used."""
        for group in self._groups:
            group.fade(0.5 ** (self._since / STALE))
        self._decided = known = self._known()
        bounds = [estimate.rate for estimate in known]
        if self._budget is None or self._budget >= 0:
            by_group = [group.bounds(group.known(), self._cycle) for group in self._groups]
            bounds = [by_group[number][place] for number, place in self._arms]
        # Ties go to plain decoding.
        self._order = sorted(range(len(bounds)), key=lambda candidate: -bounds[candidate])
        self._since = 0
        self._watch(arm)

    def _watch(self, arm: int) -> None:
        """If the cost of the arm in use changed, measure plain decoding again and drop all other costs."""
        number, place = self._arms[arm]
        costs = self._groups[number].costs
        # Compare an arm's cost with its cost when it came into use.
        used = {
            next(candidate for candidate in (*self._order, 0) if candidate in some)
            for some in (self._open, self._order)
        }
        now = {
            used_arm: self._groups[self._arms[used_arm][0]].costs.of(self._arms[used_arm][1])
            for used_arm in used
        }
        self._references = {
            used_arm: self._references.get(used_arm, seconds) for used_arm, seconds in now.items() if seconds
        }
        if costs.given or not place or arm not in self._references:
            return
        if not 1 / CHANGE <= now[arm] / self._references[arm] <= CHANGE:
            for group in self._groups:
                group.costs.forget([place] if group.costs is costs else [])
            self._references, self._budget = {}, None
            self._unseen, self._order = [0] * FIRST, [0]

    def _known(self) -> list[Estimate]:
        by_group = [group.known() for group in self._groups]
        return [by_group[number][place] for number, place in self._arms]
