"""How much each cycle drafts: a fixed amount, or what pays off.

Adaptive control drafts what commits the most tokens per second, or nothing if drafting does not pay off. The
idea is from Nightjar (Li et al. 2025): speculation of adaptive length that switches itself off. The estimates
differ: expected tokens by plan from acceptance by level, divided by measured seconds by plan. Plans that are
not in use are tried again in short probes; a probe's loss sets the wait until the next one, so that probes
cost at most a set share of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ...core.registry import resolve
from ..interface import PLAIN_PLAN, Plan
from .estimates import SECONDS, CostEstimates, TokenEstimates

# name -> "module:attr", called as control(plans)
CONTROLS: dict[str, str] = {
    "fixed": "vocabforge.decode.control.control:FixedControl",
    "adaptive": "vocabforge.decode.control.control:AdaptiveControl",
    "bandit": "vocabforge.decode.control.bandit:BanditControl",
}

HALF_LIFE = 64.0  # cycles after which an accepted or rejected draft counts half
MARGIN = 0.02  # share by which another plan must be better to take over,
LEAVE = 0.08  # and plain decoding, whose rate is known: that of drafting is uncertain by as much
CARRY = 0.5  # share at which the past counts when new requests begin
PROBE_CYCLES = 4  # cycles of one probe
FIRST_WAIT, LONGEST_WAIT = 32, 1024  # cycles between probes: doubled while probes fail
PROBE_SHARE = 0.015  # share of the time that probes may lose; after a costlier one, the next waits longer
CHANGE = 1.25  # a plan that becomes better or worse by this factor shortens the waits again
HOPE = 0.7  # a plan is worth a probe from this share of the incumbent's tokens per second,
FORGOTTEN = 2048  # or after this many cycles: its estimate may be wrong
DECIDE = 4  # cycles between decisions, outside of probes
FIRST = 3  # cycles to measure the largest plan, and plain decoding, before any choice by cost


@dataclass(frozen=True)
class CycleFigures:
    """Result of one cycle: accepted draft tokens, one number per active row, and wall time in seconds."""

    plan: Plan
    accepted: Sequence[int]
    seconds: float


Ready = Callable[[Plan], bool]


class Control(Protocol):
    """Interface for choosing each cycle's plan, from past cycles only, never from its own random numbers."""

    def begin(self) -> None: ...  # new requests start

    def plan(self, ready: Ready | None = None) -> Plan:
        """Return the plan of the next cycle, the same until :meth:`observe`.

        ``ready`` returns whether a plan has anything to draft in this cycle; None: every plan has. N-grams
        have nothing to draft if the text does not repeat itself; such a cycle does not count against them.
        """
        ...

    def observe(self, cycle: CycleFigures) -> None: ...  # a cycle has ended


class FixedControl:
    """Control that uses the largest plan (the last one) in every cycle."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plan = plans[-1] if plans else PLAIN_PLAN

    def begin(self) -> None:
        return

    def plan(self, ready: Ready | None = None) -> Plan:
        return self._plan

    def observe(self, cycle: CycleFigures) -> None:
        return


class Estimate(NamedTuple):
    """Expected tokens that a cycle of a plan commits per row, and its seconds (0: not known yet)."""

    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second; 0 if the seconds are not known."""
        return self.tokens / self.seconds if self.seconds else 0.0


class AdaptiveControl:
    """Control that chooses the plan with the most expected tokens per second.

    The plans depend only on the observations.

    Args:
        plans: the proposer's plans; plain decoding is always added.
        costs: seconds by plan, including plain decoding. Nothing is measured then, and the same requests give
            the same plans.
    """

    def __init__(self, plans: Sequence[Plan], costs: Mapping[Plan, float] | None = None) -> None:
        drafting = sorted({plan for plan in plans if plan.levels}, key=lambda plan: (plan.levels, plan.nodes))
        self.plans = [PLAIN_PLAN, *(drafting if costs else distinct(drafting))]
        self._places = {plan: place for place, plan in enumerate(self.plans)}  # 0 is plain decoding
        self._tokens = TokenEstimates(self.plans)
        self._costs = CostEstimates(self.plans, costs)
        self._used = [0] * len(self.plans)  # last cycle of each plan
        self._cycle = 0
        self._incumbent = largest = len(self.plans) - 1
        self._probe: int | None = None
        self._left = 0  # remaining cycles of the probe
        self._turn = 0  # which of the three ways to choose the probed plan
        self._backoff = self._wait = FIRST_WAIT  # cycles until the next probe
        self._owed = 0.0  # cycles that must pass before it, to make up for losses
        self._probe_lost = 0.0  # seconds that the probe lost against the incumbent
        self._expected = 0.0  # seconds of the probed plan before the probe
        self._lost = 0.0  # seconds lost against plain decoding since leaving it
        self._reference = Estimate(0.0, 0.0)  # of the incumbent, to detect changes
        # Measure the largest plan and plain decoding first: all others are between them.
        self._unseen = [] if costs or not largest else [largest] * FIRST + [0] * FIRST
        self._next = largest
        self._idle = False  # the plan has nothing to draft in this cycle
        if costs and largest:
            self._decide(self._known())

    def begin(self) -> None:
        """Start new requests, easier or harder: the past counts less, and a probe comes sooner."""
        self._tokens.fade(CARRY)
        self._backoff = max(FIRST_WAIT, self._backoff // 2)
        self._wait = min(self._wait, self._backoff)

    def plan(self, ready: Ready | None = None) -> Plan:
        plan = self.plans[self._next]
        self._idle = ready is not None and self._next > 0 and not ready(plan)
        return PLAIN_PLAN if self._idle else plan

    def estimates(self) -> dict[Plan, Estimate]:
        """Return the current estimates, by plan."""
        return dict(zip(self.plans, self._known()))

    def observe(self, cycle: CycleFigures) -> None:
        """Learn from a cycle; unknown plans and implausible seconds are ignored."""
        place = self._places.get(cycle.plan)
        if place is None or len(self.plans) == 1:
            return
        if self._idle:
            if SECONDS[0] <= cycle.seconds <= SECONDS[1]:
                self._costs.add(0, cycle.seconds)
            self._wait -= 1
            self._owed -= 1
            return
        self._cycle += 1
        self._used[place] = self._cycle
        self._tokens.fade(0.5 ** (1 / HALF_LIFE), place)
        accepted = [min(max(count, 0), cycle.plan.levels) for count in cycle.accepted]
        if place and accepted:
            self._tokens.add(place, accepted)
        if SECONDS[0] <= cycle.seconds <= SECONDS[1]:
            self._costs.add(place, cycle.seconds)
            if self._unseen and self._unseen[0] == place:
                self._unseen.pop(0)
        if self._unseen:
            self._next = self._unseen[0]
            return
        idle = place == self._incumbent == 0 and self._probe is None
        if idle and max(self._wait, self._owed) > 1:  # without drafting, nothing else is learned
            self._wait -= 1
            self._owed -= 1
            self._watch(Estimate(1.0, self._costs.of(0)), anew=False)
            self._next = 0
            return
        if self._probe is None and place == self._incumbent and self._cycle % DECIDE:
            self._wait -= 1
            self._owed -= 1
            if place:
                tokens = 1 + sum(accepted) / max(len(accepted), 1)
                self._lost += self._costs.of(place) - tokens * self._costs.of(0)
            self._next = place
            return
        known = self._known()
        if place == self._next:
            # Loss of the cycle against the incumbent, and against plain decoding, in seconds of theirs.
            tokens = 1 + sum(accepted) / max(len(accepted), 1)
            if self._probe is not None:
                self._probe_lost += known[place].seconds - tokens / known[self._incumbent].rate
            if place:
                self._lost += known[place].seconds - tokens * known[0].seconds
        self._decide(known)

    def _known(self) -> list[Estimate]:
        return list(map(Estimate, self._tokens.by_plan(), self._costs.by_plan()))

    def _decide(self, known: Sequence[Estimate]) -> None:
        ended = False
        if self._probe is not None:
            self._left -= 1
            ended = self._left <= 0
            if not ended:
                return
            known = self._end_probe(self._probe, known)
        rates = [found.rate for found in known]
        best = rates.index(max(rates))  # ties go to the smaller plan
        better = rates[best] > rates[self._incumbent] * (1 + (MARGIN if best else LEAVE))
        # Without drafting, nothing is learned: only a probe can bring drafting back.
        switched = better and (ended or self._incumbent > 0)
        if switched:
            self._switch(best, known)
        elif ended:
            self._backoff = min(2 * self._backoff, LONGEST_WAIT)
            self._wait = self._backoff
        else:
            self._wait -= 1
            self._owed -= 1
        self._watch(known[self._incumbent], anew=switched or ended)
        self._next = self._incumbent
        if self._unseen:
            self._next = self._unseen[0]
        elif self._wait <= 0 and self._owed <= 0:
            self._start_probe(known)

    def _switch(self, place: int, known: Sequence[Estimate]) -> None:
        before, self._incumbent = self._incumbent, place
        if place == 0:
            self._owe(self._lost, known)
        if before == 0:
            self._lost = self._probe_lost
        if 0 in (place, before):
            self._backoff = FIRST_WAIT
        self._wait = self._backoff

    def _owe(self, lost: float, known: Sequence[Estimate]) -> None:
        """Delay the next probe until the loss is at most the allowed share of the time."""
        self._owed = max(self._owed, lost / (PROBE_SHARE * known[self._incumbent].seconds))

    def _watch(self, found: Estimate, anew: bool) -> None:
        """Shorten the waits again if the incumbent became much better or worse."""
        if anew or not self._reference.seconds:
            self._reference = found
            return
        dearer = self._changed(found.seconds, self._reference.seconds)
        if dearer and self._incumbent:
            self._remeasure(self._incumbent)
        if dearer or self._changed(found.rate, self._reference.rate):
            self._reference, self._backoff = found, FIRST_WAIT
            self._wait = min(self._wait, self._backoff)

    def _changed(self, now: float, before: float) -> bool:
        return not 1 / CHANGE <= now / before <= CHANGE

    def _remeasure(self, *keep: int) -> None:
        """Measure plain decoding again and drop the other costs except ``keep``, after a cost has changed."""
        if not self._costs.given:
            self._costs.forget(keep)
            self._unseen = [0] * FIRST

    def _start_probe(self, known: Sequence[Estimate]) -> None:
        """Probe another plan: in turn the most promising, the least recently used, the next larger one."""
        rates = [found.rate for found in known]
        others = [place for place in range(len(self.plans)) if place != self._incumbent]

        def hopeful(place: int) -> bool:
            near = rates[place] >= HOPE * rates[self._incumbent]
            return near or place == 0 or self._cycle - self._used[place] > FORGOTTEN

        self._turn = (self._turn + 1) % 3
        if self._turn == 2 and (worth := list(filter(hopeful, others))):
            self._probe = min(worth, key=self._used.__getitem__)
        elif self._turn:
            self._probe = max(others, key=rates.__getitem__)
        else:
            self._probe = others[min(self._incumbent, len(others) - 1)]  # the next larger one
        self._left, self._probe_lost, self._next = PROBE_CYCLES, 0.0, self._probe
        self._expected = known[self._probe].seconds

    def _end_probe(self, place: int, known: Sequence[Estimate]) -> Sequence[Estimate]:
        """End a probe; if its plan's cost was unexpected, drop the other costs too. Return the estimates."""
        self._probe = None
        self._owe(self._probe_lost, known)
        if not self._changed(known[place].seconds, self._expected):
            return known
        self._remeasure(place, self._incumbent)
        return self._known()


def distinct(plans: Sequence[Plan]) -> list[Plan]:
    """Keep plans whose costs differ by more than noise: of chains the largest, its half, and so on."""
    kept: list[Plan] = []
    for plan in reversed(plans):
        chains = bool(kept) and _is_chain(kept[-1]) and _is_chain(plan)
        if not chains or kept[-1].levels >= 2 * plan.levels:
            kept.append(plan)
    return kept[::-1]


def _is_chain(plan: Plan) -> bool:
    return plan.nodes == plan.levels + 1


def make_control(name: str, plans: Sequence[Plan]) -> Control:
    """Return the named control over the proposer's plans, smallest first.

    Raises:
        UsageError: the control is unknown.
    """
    control: Control = resolve(CONTROLS, name, "control")(plans)
    return control
