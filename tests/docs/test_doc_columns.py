"""Prose of the documentation wraps at 100 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds import ROOT

COLUMNS = 100
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"\s*(```+|~~~+)")
# Tables, headings, indented code, equations, definitions of links.
_OTHER = re.compile(r"\s*\||#|    |\$\$|\[[^\]]+\]: ")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of prose with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif fence:
            fence = "" if line.strip() == fence else fence
        elif not _OTHER.match(line):
            yield number, line


def too_long(text: str) -> list[int]:
    """Lines of prose beyond the limit; one without a space after column 60 cannot be wrapped well."""
    return [number for number, line in prose(text) if len(line) > COLUMNS and " " in line[60:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_wraps(page: Path) -> None:
    name = page.relative_to(ROOT)
    lines = [f"{name}:{number}" for number in too_long(page.read_text("utf-8"))]
    assert not lines, f"wrap at {COLUMNS} columns: {', '.join(lines)}"


def test_what_is_too_long_is_found() -> None:
    long = "word " * 20 + "word"
    excepted = [f"| {long} |", f"# {long}", f"    {long}", f"[a]: {long}", "x" * 120, f"```\n{long}\n```"]
    assert too_long("\n".join([*excepted, "word " * 19 + "words"])) == []
    assert too_long(f"short\n{long}\n\n```\ncode\n```\n- {long}") == [2, 7]
