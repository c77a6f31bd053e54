"""Texts of files and models on a terminal: nothing in them is obeyed."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vocabforge.cli.app import echo, print_json
from vocabforge.cli.drafting.generate import show
from vocabforge.core.console import (
    DataCell,
    DataTable,
    FactList,
    open_console,
    say,
    spelled_in_json,
    spelled_out,
)

# Clear the screen, set the title, a link, a clipboard, the 8-bit introducer, a line overwritten, text turned around.
ATTACKS = (
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\y", "\x1b]52;c;eA==\x07", "\x9b31m", "safe\rgone",
    "a\u202eb\u2066c", "\x7f\b\b",
)  # fmt: skip
STEERING = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F))}


@pytest.mark.parametrize(
    "text", ["", "a\tb\nc", "é 日本語\u3000 עברית 👩\u200d🔬 \u00a0 ﷽", "C:\\x1b", "[bold]x[/nothing]"]
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert spelled_out(text) == text


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("show", [str, Text, Panel, lambda text: _table(text)])
def test_no_text_steers_the_terminal(attack: str, show: Callable[[str], object]) -> None:
    out = open_console()
    out.file = io.StringIO()
    out.print(show(f"{attack}[/nothing][link=http://x]y[/link]"))
    written = out.file.getvalue()
    assert not STEERING & set(written)
    assert "[link=http://x]y[/link]" in written
    assert repr(attack)[1:-1][:3] in written


@pytest.mark.parametrize("show", [str, lambda text: _table(text)])
def test_names_between_colons_stay_names(show: Callable[[str], object]) -> None:
    out = open_console()
    out.file = io.StringIO()
    out.print(show("runs:on:x:cat:cpu"))
    assert "runs:on:x:cat:cpu" in out.file.getvalue()


def _table(text: str) -> Table:
    table = Table("name", title=text)
    table.add_row(text)
    return table


@pytest.mark.parametrize("attack", ATTACKS)
def test_lines_and_json_neither(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(attack)
    say(attack)
    print_json({attack: attack})
    out, err = capsys.readouterr()
    assert not STEERING & set(out + err)
    assert json.loads(out.partition("\n")[2]) == {attack: attack}


@pytest.mark.parametrize("terminal", [True, False])
def test_generated_text_is_whole_where_it_is_no_terminal(terminal, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    text = "".join(ATTACKS)
    show(text)
    assert stream.getvalue() == (spelled_out(text) if terminal else text)


def test_half_a_character_can_be_printed() -> None:
    assert spelled_out("a\ud800b") == "a\\ud800b"
    written = spelled_in_json(json.dumps({"a": "\udfff"}, ensure_ascii=False))
    assert written.encode("utf-8") == b'{"a": "\\udfff"}'
    assert json.loads(written) == {"a": "\udfff"}


def shown(what: object, width: int = 60) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(what)
    return console.export_text()


METHODS = DataTable(
    "methods [bold]",
    ["method<", *(f"figure {number}" for number in range(8)), "verdict<"],
    [
        [f"eagle3+router:{row}", *(DataCell(f"{row}.{at:03}", "0.9–1.1") for at in range(8)), "not [i]judged"]
        for row in "ab"
    ],
    "a caption",
)


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_table_too_wide_goes_on_in_further_ones_with_its_first_column(width: int) -> None:
    text = shown(METHODS, width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("methods [bold]", "a caption", *(f"{row}.{at:03}" for row in "ab" for at in range(8))):
        assert words in " ".join(text.split()), words
    parts = text.count("(continued)") + 1
    assert text.count("router:") == 2 * parts
    assert text.count("0.9–1.1") == 16
    assert (parts == 1) is (width == 200)


@pytest.mark.parametrize("width", [70, 80])
def test_a_row_keeps_its_name_and_its_last_digit_beside_long_texts(width: int) -> None:
    columns = ["method<", "says<", *(f"count {number}" for number in range(3))]
    row = ["eagle3+ngram-r32768-k", "words " * 20, *(f"{number},234,567.8{number}" for number in range(3))]
    lines = shown(DataTable("", columns, [row]), width).splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.split()[:1] == [row[0]] for line in lines) == (2 if width == 70 else 1)
    assert all(number in " ".join(lines) for number in row[2:])


def test_a_table_as_markdown_and_facts_as_lines() -> None:
    table = DataTable("", ["name<", "size"], [["a|b", DataCell("1", "(2)")]])
    assert table.markdown() == ["| name | size |", "| --- | ---: |", "| a\\|b | 1 (2) |"]
    facts = shown(
        FactList({"count": 1234, "share": 0.5, "none": None, "yes": True, "list": [1] * 9, "[b]": "[i]"})
    )
    assert [line.split(maxsplit=1)[1].strip() for line in facts.splitlines()] == [
        "1,234",
        "0.5",
        "none",
        "yes",
        "1, 1, 1, 1, 1, 1, 1, 1, … (9 in all)",
        "[i]",
    ]
