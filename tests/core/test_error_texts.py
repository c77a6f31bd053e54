from __future__ import annotations

from vocabforge.core.errors import DataError


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    error = DataError("a bad \x1b[31mname", got="two\nlines\tand \x07\udcff\u202e", source="näme – ok.txt")
    text = error.render()
    assert text == (
        "a bad \\x1b[31mname\n  got:      two\nlines\tand \\x07\\udcff\\u202e\n  source:   näme – ok.txt"
    )
    assert str(error) == text
