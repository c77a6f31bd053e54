"""A bandit over proposers and sizes: each cycle drafts with the arm that may commit most tokens a second.

An arm is a plan of one proposer; plain decoding is one, too. The idea is BanditSpec's (Hou et al. 2025): a drafter and
its length are chosen by upper confidence bounds. Ours: the bound is one of tokens over measured seconds, evidence fades
as in discounted UCB (Garivier and Moulines 2011), arms of one proposer learn from each other (``estimates.py``), and
exploration may lose a set share of the time at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..proposers.interface import PLAIN_PLAN, Plan
from .control import CARRY, CHANGE, FIRST, HALF_LIFE, CycleFigures, Estimate, distinct
from .estimates import SECONDS, CostEstimates, TokenEstimates

BLOCK = 4  # cycles that an arm is played for
STALE = 256.0  # cycles after which what was seen of an arm counts half,
DOUBT = 1024.0  # and after which its cost may have fallen by half
SHARED = 0.25  # what a cycle counts for the other arms of its proposer
# Variance of committed tokens before anything is seen, and how many cycles that counts for.
SPREAD, WEIGHT = 1.0, 2.0
SHARE = 0.02  # most of the time that exploration may lose,
AHEAD = 32  # and plain cycles that it may lose before that time has passed


class _Arms:
    """What is known of one proposer's arms: plain decoding, then its plans."""

    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None) -> None:
        self.plans = [PLAIN_PLAN, *plans]
        self.tokens = TokenEstimates(self.plans)
        self.costs = CostEstimates(self.plans, costs)
        # By arm, fading: rows of cycles, and sums of their tokens and squared tokens.
        self.count, self.sum, self.squares = ([0.0] * len(self.plans) for _ in range(3))
        self.used = [0] * len(self.plans)  # the last cycle of each

    def fade(self, factor: float) -> None:
        """What was seen counts ``factor`` times as much for the bounds."""
        for figures in (self.count, self.sum, self.squares):
            figures[:] = [figure * factor for figure in figures]

    def add(self, place: int, accepted: Sequence[int], cycle: int) -> None:
        """One cycle of an arm that drafts."""
        self.tokens.fade(0.5 ** (1 / HALF_LIFE + (cycle - max(self.used) - 1) / STALE))
        self.fade(0.5 ** (1 / HALF_LIFE))
        self.used[place] = cycle
        self.tokens.add(place, accepted)
        for count in accepted:
            self.count[place] += 1
            self.sum[place] += count + 1
            self.squares[place] += (count + 1) ** 2

    def known(self) -> list[Estimate]:
        """What is expected of each arm."""
        return list(map(Estimate, self.tokens.by_plan(), self.costs.by_plan()))

    def bounds(self, known: Sequence[Estimate], cycle: int) -> list[float]:
        """Tokens a second that each arm may reach; plain decoding's are certain."""
        together, log = sum(self.count), math.log(1 + min(cycle, 2 * STALE))
        found = [known[0].rate]
        for place in range(1, len(self.plans)):
            count, mean = self.count[place], self.sum[place] / max(self.count[place], 1e-9)
            variance = (self.squares[place] - count * mean**2 + WEIGHT * SPREAD) / (count + WEIGHT)
            evidence = count + SHARED * (together - count)
            more = math.sqrt(max(variance, 0.0) * log / max(evidence, 1e-9))
            cheaper = 1 + (cycle - self.used[place]) / DOUBT
            tokens, seconds = known[place]
            found.append((tokens + more) * cheaper / seconds if seconds else 0.0)
        return found


class BanditControl:
    """Chooses the arm with the largest bound; the same observations give the same plans.

    Args:
        plans: what the proposers can draft, ``by`` names whose it is; plain decoding is always allowed beside them.
        costs: seconds by plan, plain decoding among them. Nothing is measured then, and the same requests give the
            same plans.
    """

    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None = None) -> None:
        self._groups: list[_Arms] = []
        for name in dict.fromkeys(plan.by for plan in plans) or [""]:
            own = {plan for plan in plans if plan.by == name and plan.levels}
            drafting = sorted(own, key=lambda plan: (plan.levels, plan.nodes))
            self._groups.append(_Arms(drafting if costs else distinct(drafting), costs))
        # Plain decoding, which all groups have, then the others: each a group and a place there.
        self._arms = [(0, 0)]
        for number, group in enumerate(self._groups):
            self._arms += [(number, place) for place in range(1, len(group.plans))]
        self.plans = [self._groups[number].plans[place] for number, place in self._arms]
        self._numbers = {plan: arm for arm, plan in enumerate(self.plans)}
        self._cycle = self._since = 0  # cycles in all, and of the arm since it was chosen
        self._decided: list[Estimate] = []  # what was known then, and the best arm
        self._best = 0
        self._budget: float | None = None  # seconds that exploration may lose now
        self._reference = 0.0  # seconds of the arm in use, to see changes
        # The largest plan of each proposer and plain decoding first: the other costs lie between them.
        largest = [self._numbers[group.plans[-1]] for group in self._groups if group.plans[1:]]
        self._unseen = [] if costs else [arm for arm in (*largest, 0) for _ in range(FIRST)]
        self._switched = False  # the arm's first cycle is still to come
        self._next = self._unseen[0] if self._unseen else 0
        if costs:
            self._decide()

    def begin(self) -> None:
        """New requests: their texts may be easier or harder, so the past counts less."""
        for group in self._groups:
            group.tokens.fade(CARRY)
            group.fade(CARRY)

    def plan(self) -> Plan:
        return self.plans[self._next]

    def estimates(self) -> dict[Plan, Estimate]:
        """What is known now, by plan."""
        return dict(zip(self.plans, self._known()))

    def observe(self, cycle: CycleFigures) -> None:
        """Learn from a cycle. Cycles of plans that it does not know, and seconds that no clock gives, teach nothing."""
        arm = self._numbers.get(cycle.plan)
        if arm is None or len(self.plans) == 1:
            return
        self._cycle += 1
        number, place = self._arms[arm]
        accepted = [min(max(count, 0), cycle.plan.levels) for count in cycle.accepted]
        if place and accepted:
            self._groups[number].add(place, accepted, self._cycle)
        timed = SECONDS[0] <= cycle.seconds <= SECONDS[1]
        # A proposer's first cycle after another's also reads what that one committed.
        if timed and not (self._switched and arm == self._next):
            for group in [self._groups[number]] if place else self._groups:
                group.costs.add(place, cycle.seconds)
        if arm == self._next:
            self._switched = False
        if self._unseen:
            if timed and self._unseen[0] == arm:
                self._unseen.pop(0)
            if self._unseen:
                self._next = self._unseen[0]
                return
        self._pay(arm, accepted)
        self._since += 1
        if self._since >= BLOCK:
            self._decide()

    def _pay(self, arm: int, accepted: Sequence[int]) -> None:
        """Take what a cycle lost against the best arm from what exploration may lose."""
        if not self._decided:
            return
        known = self._decided if arm == self._best else self._known()
        best, most, lost = max(found.rate for found in known), AHEAD * known[0].seconds, 0.0
        if known[arm].rate < best:
            lost = known[arm].seconds - (1 + sum(accepted) / max(len(accepted), 1)) / best
        before = most if self._budget is None else self._budget
        self._budget = min(before + SHARE * known[arm].seconds - lost, most)

    def _decide(self) -> None:
        for group in self._groups:
            group.fade(0.5 ** (self._since / STALE))
        known, before = self._known(), self._next
        rates, self._decided = [found.rate for found in known], known
        self._best = rates.index(max(rates))  # ties to plain decoding
        if self._budget is not None and self._budget < 0:
            bounds = rates
        else:
            by_group = [group.bounds(group.known(), self._cycle) for group in self._groups]
            bounds = [by_group[number][place] for number, place in self._arms]
        self._next = bounds.index(max(bounds))
        self._since, self._switched = 0, self._next != before
        self._watch()

    def _watch(self) -> None:
        """Where the arm in use costs more or less than was known, measure plain decoding and trust no other cost."""
        number, place = self._arms[self._next]
        costs = self._groups[number].costs
        seconds = costs.of(place)
        if costs.given or not place or self._switched or not self._reference:
            self._reference = seconds if place else 0.0
        elif not 1 / CHANGE <= seconds / self._reference <= CHANGE:
            for group in self._groups:
                group.costs.forget([place] if group.costs is costs else [])
            self._reference, self._budget = 0.0, None
            self._unseen, self._next = [0] * FIRST, 0

    def _known(self) -> list[Estimate]:
        by_group = [group.known() for group in self._groups]
        return [by_group[number][place] for number, place in self._arms]
