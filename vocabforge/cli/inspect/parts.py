"""What the views of ``inspect`` are made of: a request, a result in both forms, tables from rows of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...core.console import DataTable, FactList, bar, percent, value_text
from .names import TokenNames

if TYPE_CHECKING:
    from rich.console import RenderableType

_HINT = "Tokens are shown by id: give --tokenizer PATH to see their texts."


@dataclass(frozen=True)
class ViewRequest:
    """How many rows of each list to show, and the texts of token ids."""

    top: int
    names: TokenNames


@dataclass(frozen=True)
class View:
    """What there is to see in an artefact, as JSON and as tables."""

    facts: dict[str, Any]
    shown: list[Any] = field(default_factory=list)


def facts_table(facts: Mapping[str, Any], title: str = "") -> FactList:
    """Names and values, one a line; a hash is shortened."""
    long = ("tokenizer", "key", "digest")
    return FactList({n: f"{v[:16]}…" if n in long and v else v for n, v in facts.items()}, title)


def rows_table(title: str, rows: Sequence[Mapping[str, Any]], *, bars: str = "") -> DataTable:
    """Rows of JSON as a table: a column a key, texts left, numbers right.

    Args:
        bars: key of a number that a last column draws as a bar; 0 is left without.
    """
    keys = list(rows[0]) if rows else []
    heads = [name.replace("_", " ") + ("<" if isinstance(rows[0][name], str) else "") for name in keys]
    cells = [[_cell(name, row[name]) for name in keys] for row in rows]
    if bars:
        heads.append("<")
        largest = max((row[bars] for row in rows), default=1)
        cells = [[*line, bar(row[bars], largest)] for line, row in zip(cells, rows, strict=True)]
    return DataTable(title, heads, cells)


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return percent(value, 3)
    if name in ("id", "cluster", "row"):
        return str(value)
    return f"{value:,.3f}" if isinstance(value, float) else "" if value == "" else value_text(value)


def json_names(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same facts under names for programs: underscores for spaces."""
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def scalars(values: Mapping[str, Any], *, without: Iterable[str] = ()) -> dict[str, Any]:
    """The entries of a manifest that fit on a line."""
    left_out = set(without)
    return {
        name: value
        for name, value in values.items()
        if name not in left_out and isinstance(value, (str, int, float, bool, type(None)))
    }


def hint(names: TokenNames) -> list[RenderableType]:
    """How to see the tokens' texts, if there is no tokenizer."""
    from rich.text import Text

    return [] if names.known else [Text(_HINT, style="dim")]
