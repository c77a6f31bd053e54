"""How much each cycle drafts: a fixed amount, or what pays off (``adaptive.py``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..interface import PLAIN_PLAN, Plan

# name -> "module:attr", called as control(plans) with the proposer's plans, smallest first
CONTROLS: dict[str, str] = {
    "fixed": "vocabforge.decode.control.control:FixedControl",
    "adaptive": "vocabforge.decode.control.adaptive:AdaptiveControl",
}


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
