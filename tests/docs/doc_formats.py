"""Reads the keys of files out of the tables of docs/formats.md."""

from __future__ import annotations

import re

from tests.worlds import ROOT

_CODE = re.compile(r"`([^`]+)`")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table of a section, the head left out; ``heading``: how its line begins."""
    text = (ROOT / "docs" / "formats.md").read_text("utf-8")
    section = next(part for part in re.split(r"^#+ ", text, flags=re.M) if part.startswith(heading))
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def keys(heading: str) -> set[str]:
    """Names in the first column of a section's table."""
    return {name for row in rows_of(heading) for name in _CODE.findall(row[0])}


def keys_by_kind(heading: str) -> dict[str, set[str]]:
    """Names in the second column, by that of the first."""
    found: dict[str, set[str]] = {}
    for row in rows_of(heading):
        (kind,) = _CODE.findall(row[0])
        found.setdefault(kind, set()).update(_CODE.findall(row[1]))
    return found


def written(rows: list[dict[str, object]]) -> dict[str, set[str]]:
    """Keys of a log's rows by kind, without those that every row has."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(str(row["kind"]), set()).update(set(row) - {"kind", "step"})
    return found
