"""Links of the documentation: files that are there, anchors that a heading makes."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.cli.every_kind import kinds_of_the_package
from tests.worlds import ROOT

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"|\{#([\w-]+)\}")


def pages() -> list[Path]:
    """Every page that people read: of the repository's root and of docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(text: str) -> set[str]:
    """Names that can stand behind ``#``; a heading's as a repository page and the site both make it."""
    text = _FENCE.sub("", text)
    made: set[str] = {name for found in _ANCHOR.findall(text) for name in found if name}
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode().lower()
        made.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
        made.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip()))
    return made


def broken(page: Path, root: Path) -> list[str]:
    """Links of ``page`` that lead nowhere; links to other hosts are not followed."""
    wrong = []
    text = _CODE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    for link in _LINK.findall(text):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(root):
            wrong.append(f"{link}: outside the repository")
        elif not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text("utf-8")):
            wrong.append(f"{link}: no heading gives this anchor")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page, ROOT) == []


def test_the_pages_are_found() -> None:
    names = {str(page.relative_to(ROOT)) for page in pages()}
    assert names >= {"README.md", "CONTRIBUTING.md", "docs/methods.md", "docs/guides/tune.md"}


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Two `words`: here\n\n```\n# not a heading\n```\n", "utf-8")
    page = tmp_path / "page.md"
    links = (
        "other.md",
        "other.md#two-words-here",
        "https://example.org/x",
        "#top",
        "gone.md",
        "other.md#not-a-heading",
        "../x.md",
    )
    page.write_text("# Top\n" + "".join(f"[a]({link})\n" for link in links) + "`[a](code.md)`\n", "utf-8")
    assert [line.partition(":")[0] for line in broken(page, tmp_path)] == [
        "gone.md",
        "other.md#not-a-heading",
        "../x.md",
    ]


_NAMED = re.compile(r"`([\w/]+\.py)(?:: (\w+))?`")


def not_in_the_code(text: str, package: Path) -> list[str]:
    """References ``file.py`` and ``file.py: name`` of a text that the package has no such file or name for."""
    wrong = []
    for file, name in _NAMED.findall(text):
        path = package / file
        if not path.is_file():
            wrong.append(file)
        elif name and not re.search(rf"^\s*(?:def|class) {name}\b", path.read_text("utf-8"), re.MULTILINE):
            wrong.append(f"{file}: {name}")
    return wrong


def test_the_methods_name_code_that_is_there() -> None:
    text = (ROOT / "docs" / "methods.md").read_text("utf-8")
    assert len(_NAMED.findall(text)) > 80, "the tables were read"
    assert not_in_the_code(text, ROOT / "vocabforge") == []
    assert not_in_the_code("`vocab/subset/select.py: gone` `vocab/gone.py`", ROOT / "vocabforge") == [
        "vocab/subset/select.py: gone",
        "vocab/gone.py",
    ]


def test_sections_named_in_the_code_are_in_the_methods() -> None:
    headings = re.findall(
        r"^#{2,3} (?:[\d.]+ )?(.+)$", (ROOT / "docs" / "methods.md").read_text("utf-8"), re.MULTILINE
    )
    files = (ROOT / "vocabforge").rglob("*.py")
    named = {
        title
        for file in files
        for title in re.findall(r"docs/methods\.md, ([A-Z][\w -]*\w)[).;:]", file.read_text("utf-8"))
    }
    assert {"Draft heads", "The training-time test"} <= named <= set(headings)


def unsourced(text: str) -> list[str]:
    """Sections of performance figures that do not say command, machine or date, each with what is missing."""
    wanted = {
        "command": r"\b(?:make\s[a-z]|vocabforge\s[a-z]|python (?:-m [a-z]|recipes/|kernels/))",
        "machine": r"\bMachine:\s",
        "date": r"\b20\d\d-\d\d-\d\d\b",
    }
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return [
        f"{section.splitlines()[0]}: no {what}"
        for section in sections
        for what, pattern in wanted.items()
        if not re.search(pattern, section)
    ]


def test_every_figure_has_command_machine_and_date() -> None:
    pages = [ROOT / "docs" / "performance.md", *(ROOT / "docs" / "performance").glob("*.md")]
    assert len(pages) > 4
    for page in pages:
        assert unsourced(page.read_text("utf-8")) == [], page.name
    assert unsourced("## Speed\nMachine: x. 2026-01-01. `make demo`\n## Size\n`make demo`: 3 MB\n") == [
        "Size: no machine",
        "Size: no date",
    ]


def test_every_kind_of_artefact_is_in_the_formats() -> None:
    text = (ROOT / "docs" / "formats.md").read_text("utf-8")
    assert [kind for kind in sorted(kinds_of_the_package()) if f"\n| `{kind}` |" not in text] == []
