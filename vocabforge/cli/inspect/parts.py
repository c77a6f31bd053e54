"""Content of an artefact as JSON for ``inspect``, and its conversion to tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.console import DataTable, FactList, percent, value_text
from .names import TokenNames

_HASHES = ("tokenizer", "key", "digest")
_MOST_ROWS = 100


@dataclass(frozen=True)
class ViewRequest:
    """Number of rows to show of each list, and the texts of token ids."""

    top: int
    names: TokenNames

    def token(self, token: int) -> dict[str, Any]:
        """Return a token's id and text."""
        return {"id": token, "text": self.names.text(token)}


@dataclass(frozen=True)
class View:
    """Content of an artefact as JSON values; ``shown`` replaces the default tables."""

    facts: Mapping[str, Any]
    shown: Sequence[Any] | None = None

    def tables(self) -> Sequence[Any]:
        """Return the tables for a terminal."""
        return content_tables(self.facts) if self.shown is None else self.shown


def content_tables(content: Mapping[str, Any]) -> list[Any]:
    """Return single values as a list, then a table for each list of rows and each group of facts."""
    lines: dict[str, Any] = {}
    tables: list[Any] = []
    for key, value in content.items():
        name = key.replace("_", " ")
        title = name[:1].upper() + name[1:]
        if isinstance(value, Mapping) and value:
            keys = [row.keys() if isinstance(row, Mapping) else None for row in value.values()]
            if keys[0] is not None and all(one == keys[0] for one in keys):
                tables.append(rows_table(title, [{"name": one, **row} for one, row in value.items()]))
            else:
                tables.append(facts_table(flat(value), title))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            tables.append(rows_table(title, value))
        elif value not in ({}, []):
            lines[name] = value
    return [facts_table(lines), *tables]


def facts_table(facts: Mapping[str, Any], title: str = "") -> FactList:
    """Return names and values, one per line, with hashes shortened and shares in percent."""
    return FactList({name: _fact(name, value) for name, value in facts.items()}, title)


def _fact(name: str, value: Any) -> Any:
    if name in _HASHES and value:
        return f"{value[:16]}…"
    share = name == "coverage" or "share" in name.split()
    return percent(value) if share and isinstance(value, float) else value


def rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> DataTable:
    """Return JSON rows as a table with a column per key: texts left-aligned, numbers right-aligned."""
    keys = list(rows[0]) if rows else []
    numbers = {name for name in keys if isinstance(rows[0][name], (int, float, type(None)))}
    heads = [name.replace("_", " ") + ("" if name in numbers else "<") for name in keys]
    shown = rows[:_MOST_ROWS]
    cells = [[_cell(name, row.get(name)) for name in keys] for row in shown]
    more = len(rows) - len(shown)
    return DataTable(title, heads, cells, f"{more:,} more: --json has all" if more else "")


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return percent(value, 3)
    if name in ("id", "cluster", "row"):
        return str(value)
    if isinstance(value, list) and value and isinstance(value[0], Mapping):  # list of tokens
        return "  ".join(str(one.get("text") or one.get("id")) for one in value)
    return f"{value:,.3f}" if isinstance(value, float) else "" if value == "" else value_text(value)


def scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a manifest that fit on a line."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (str, int, float, bool, type(None)))
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
