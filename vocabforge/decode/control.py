"""How much each cycle drafts: always the same, or what pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..core.errors import UsageError
from ..core.extension import resolve
from .draft import PLAIN_PLAN, Plan

if TYPE_CHECKING:
    from .control_adaptive import AdaptiveOptions

# name -> "module:attr", called as control(plans, options)
CONTROLS: dict[str, str] = {
    "fixed": "vocabforge.decode.control:FixedControl",
    "adaptive": "vocabforge.decode.control_adaptive:AdaptiveControl",
}


@dataclass(frozen=True)
class CycleFigures:
    """What one cycle did.

    Attributes:
        plan: what was asked of it.
        accepted: draft tokens accepted, one number an active row.
        seconds: its wall time.
    """

    plan: Plan
    accepted: Sequence[int]
    seconds: float


class Control(Protocol):
    """Chooses each cycle's plan. The choice may depend on what is past, never on the cycle's own random numbers."""

    def begin(self) -> None:
        """New requests start."""
        ...

    def plan(self) -> Plan:
        """The plan of the next cycle; the same one until :meth:`observe`."""
        ...

    def observe(self, cycle: CycleFigures) -> None:
        """A cycle has ended."""
        ...


class FixedControl:
    """The largest plan in every cycle.

    Args:
        plans: smallest first.

    Raises:
        UsageError: options, which it has none of.
    """

    def __init__(self, plans: Sequence[Plan], options: AdaptiveOptions | None = None) -> None:
        if options is not None:
            raise UsageError(
                "a fixed control has no options", got="adaptive options", remedy="choose the adaptive control"
            )
        self._plan = plans[-1] if plans else PLAIN_PLAN

    def begin(self) -> None:
        return

    def plan(self) -> Plan:
        return self._plan

    def observe(self, cycle: CycleFigures) -> None:
        return


def make_control(name: str, plans: Sequence[Plan], options: AdaptiveOptions | None = None) -> Control:
    """The control of this name.

    Args:
        name: ``fixed`` or ``adaptive``.
        plans: what the proposer can draft, smallest first; plain decoding is always allowed beside them.
        options: of the adaptive control.

    Raises:
        UsageError: no such control, or options that it does not have.
    """
    control: Control = resolve(CONTROLS, name, "control")(plans, options)
    return control
