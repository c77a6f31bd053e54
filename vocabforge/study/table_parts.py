"""A table as rows of cells, and how figures stand in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..evaluate.results import Figure
from .results import Cell, StudyResults

DASH = "–"
KINDS = {True: "held", False: "not held", None: "not judged"}


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
        key: anchor on the page.
        note: what its figures are: measured, predicted, or arithmetic.
        columns: headings; the first is of the rows' names.
        rows: cells as text; the first is the row's name.
        text: number of columns from the left that are text, not numbers.
        keys: method of each row; empty where rows are no methods.
    """

    key: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    keys: Sequence[str] = ()

    @property
    def named(self) -> bool:
        """The second column tells rows of one name apart: a narrow table has both in one."""
        return bool(self.keys) and self.text == 2


def length(cell: Cell | None) -> str:
    """``2.61 ±0.02``: accepted length and its deviation over seeds."""
    return DASH if cell is None else _with_deviation(cell.accepted, 2)


def share(cell: Cell | None, *, between: bool = True) -> str:
    """``98.5 ±0.1 [98.2–98.8]``: share of the full head's accepted length in percent.

    Args:
        between: with its interval, where it has one with a width.
    """
    if cell is None or cell.share.value is None:
        return DASH
    found = _percents(cell.share)
    text = _with_deviation(found, 1)
    if between and found.low is not None and found.high is not None and found.low != found.high:
        text += f" [{found.low:.1f}–{found.high:.1f}]"
    return text


def percent(value: float | None) -> str:
    """A share in percent, with another digit where it is small."""
    return DASH if value is None else f"{100 * value:.{2 if value < 0.1 else 1}f}%"


def points(one: Cell | None, other: Cell | None) -> str:
    """Difference of two shares in percentage points."""
    if one is None or other is None or one.share.value is None or other.share.value is None:
        return DASH
    return f"{round(100 * (one.share.value - other.share.value), 1) + 0.0:+.1f}"


def seeds_words(results: StudyResults) -> str:
    """How figures are joined over seeds."""
    count = len(results.seeds)
    return "one seed" if count == 1 else f"mean over {count} seeds ± their sample deviation"


def _percents(figure: Figure) -> Figure:
    values = {"value": figure.value, "sd": figure.sd, "low": figure.low, "high": figure.high}
    return Figure(**{name: None if value is None else 100 * value for name, value in values.items()})


def _with_deviation(figure: Figure, digits: int) -> str:
    if figure.value is None:
        return DASH
    text = f"{figure.value:,.{digits}f}"
    return text if figure.sd is None else f"{text} ±{figure.sd:.{digits}f}"
