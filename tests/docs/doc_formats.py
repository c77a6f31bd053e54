"""Reads the keys of files out of the tables of docs/formats.md."""

from __future__ import annotations

import re

from tests.worlds import ROOT

PAGE = ROOT / "docs" / "formats.md"
_CODE = re.compile(r"`([^`]+)`")


def tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section, up to the next heading: rows of cells, the head left out.

    Args:
        heading: how its line goes on behind the hashes; the first that does is taken.
    """
    lines = PAGE.read_text("utf-8").splitlines()
    at = next(
        number for number, line in enumerate(lines) if re.match(rf"#+ {re.escape(heading)}", line) is not None
    )
    found: list[list[list[str]]] = []
    inside = False
    for line in lines[at + 1 :]:
        if line.startswith("#"):
            break
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            found.append([])
        inside = True
        found[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return [rows[2:] for rows in found]


def keys(heading: str, table: int = 0) -> set[str]:
    """Names in the first column of a section's table."""
    return {name for row in tables(heading)[table] for name in _CODE.findall(row[0])}


def keys_by_kind(heading: str) -> dict[str, set[str]]:
    """Names in the second column, by that of the first."""
    found: dict[str, set[str]] = {}
    for row in tables(heading)[0]:
        (kind,) = _CODE.findall(row[0])
        found.setdefault(kind, set()).update(_CODE.findall(row[1]))
    return found


def written(rows: list[dict[str, object]]) -> dict[str, set[str]]:
    """Keys of a log's rows by kind, without those that every row has."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(str(row["kind"]), set()).update(set(row) - {"kind", "step"})
    return found
