"""What the views are made of: a request, a result in both forms, tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from .names import TokenNames

if TYPE_CHECKING:
    from rich.console import RenderableType

_BAR = 24


@dataclass(frozen=True)
class Request:
    """How much to show, and how to write tokens.

    Attributes:
        top: rows of each list.
        names: texts of token ids.
    """

    top: int
    names: TokenNames


@dataclass(frozen=True)
class View:
    """What there is to see in an artefact.

    Attributes:
        facts: as JSON.
        shown: as rich objects.
    """

    facts: dict[str, Any]
    shown: list[RenderableType] = field(default_factory=list)


def facts_table(facts: Mapping[str, Any], title: str | None = None) -> Table:
    """Names and values, one a line; texts are shown as they are, never read as markup."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(name), Text(value_text(value)))
    return table


def json_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same facts under names for programs: underscores for spaces."""
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def value_text(value: Any) -> str:
    """One value on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        few = ", ".join(str(item) for item in value[:8])
        return (few + (f", … ({len(value):,} in all)" if len(value) > 8 else "")) or "none"
    return str(value)


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table; a column's name ending in ``<`` is set left and may be folded, the others right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        left = column.endswith("<")
        table.add_column(
            column.rstrip("<"), justify="left" if left else "right", overflow="fold", no_wrap=not left
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def percent(share: float | None, digits: int = 2) -> str:
    """A share, ``-`` where there is none."""
    return "-" if share is None else f"{share:.{digits}%}"


def bar(value: float, largest: float) -> str:
    """A bar of at most 24 characters; anything above 0 shows."""
    if value <= 0:
        return ""
    return "█" * max(1, round(_BAR * value / largest))


def scalars(values: Mapping[str, Any], *, without: Iterable[str] = ()) -> dict[str, Any]:
    """The entries of a manifest that fit on a line."""
    left_out = set(without)
    return {
        name: value
        for name, value in values.items()
        if name not in left_out and isinstance(value, (str, int, float, bool, type(None)))
    }


def hint(names: TokenNames) -> list[RenderableType]:
    """How to see texts, where there is no tokenizer."""
    return [] if names.known else [Text(names.why, style="dim")]
