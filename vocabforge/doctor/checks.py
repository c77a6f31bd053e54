"""Checks and their outcomes; a check that crashes counts as failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeVar

from ..core.errors import VocabForgeError
from ..core.progress import ProgressBar

State = Literal["ok", "warning", "failed", "skipped"]
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Finding(Generic[ValueT]):
    """Result of one check.

    Attributes:
        remedy: suggested action if there is a problem.
        value: value passed to later checks, or None.
    """

    found: str
    state: State = "ok"
    remedy: str | None = None
    value: ValueT | None = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckRow:
    """One line of the report."""

    group: str
    check: str
    state: State
    found: str
    remedy: str | None = None
    details: tuple[str, ...] = ()


@dataclass
class Report:
    """Rows of the report; ``run`` adds one."""

    rows: list[CheckRow] = field(default_factory=list)

    def run(
        self, group: str, check: str, function: Callable[..., Finding[ValueT]], *needs: Any
    ) -> ValueT | None:
        """Run a check on the values of earlier checks and record the outcome.

        Args:
            needs: arguments of ``function``; the check is skipped if one of them is None.

        Returns:
            The finding's value; None if the check failed or was skipped.
        """
        if any(need is None for need in needs):
            self.skip(group, check)
            return None
        try:
            with ProgressBar(f"check {group}: {check}"):
                finding = function(*needs)
        except VocabForgeError as error:
            finding = Finding(_in_one_line(error), "failed", error.remedy)
        except Exception as error:  # noqa: BLE001 (a crash is the result of the check)
            remedy = "this is not a known failure: please report it with the command line"
            finding = Finding(f"{type(error).__name__}: {error}", "failed", remedy)
        self.rows.append(
            CheckRow(group, check, finding.state, finding.found, finding.remedy, finding.details)
        )
        return None if finding.state == "failed" else finding.value

    def skip(self, group: str, check: str) -> None:
        """Record that a check was skipped because an earlier one did not pass."""
        self.rows.append(CheckRow(group, check, "skipped", "needs a check above that did not pass"))

    def failed(self, check: str) -> bool:
        """Return whether a check of this name failed."""
        return any(row.check == check and row.state == "failed" for row in self.rows)

    def count(self, state: State) -> int:
        """Return the number of rows with this state."""
        return sum(row.state == state for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counts = {state: self.count(state) for state in ("ok", "warning", "failed", "skipped")}
        return {"checks": [asdict(row) for row in self.rows], "counts": counts}


def _in_one_line(error: VocabForgeError) -> str:
    details = (("got", error.got), ("expected", error.expected), ("in", error.source))
    told = "; ".join(f"{label} {value}" for label, value in details if value is not None)
    return f"{error.message}: {told}" if told else error.message
