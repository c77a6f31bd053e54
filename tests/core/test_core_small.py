"""Errors, extension tables, ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from vocabforge.core.distributed import rank, world_size
from vocabforge.core.errors import DataError, UsageError, VocabForgeError, closest, did_you_mean
from vocabforge.core.registry import resolve


def test_an_error_says_got_expected_source_remedy() -> None:
    error = DataError("it is broken", got=0, expected="1", source=Path("a/b"), remedy="mend it")
    lines = str(error).splitlines()
    assert lines[0] == "it is broken"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["got", "expected", "source", "remedy"]
    assert "0" in lines[1], "a got of 0 is something"
    assert str(VocabForgeError("only this")) == "only this"


def test_a_misspelt_name_finds_the_one_that_was_meant() -> None:
    assert (closest("alpah", ["beta", "alpha"]), closest("zzz", ["beta"])) == ("alpha", None)
    assert did_you_mean("alpah", iter(["alpha"])) == "did you mean alpha?"
    assert did_you_mean("alpah", {}) is None


TABLE = {"alpha": "json:dumps", "beta": "json:loads"}


def test_resolve_names_the_rows_there_are() -> None:
    with pytest.raises(UsageError, match="no thing of this name") as caught:
        resolve(TABLE, "alpah", "thing")
    assert caught.value.expected == "alpha, beta"
    assert caught.value.remedy == "did you mean alpha?"
    with pytest.raises(UsageError) as caught:
        resolve(TABLE, "zzz", "thing")
    assert caught.value.remedy is None


def test_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "")
    assert (rank(), world_size()) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    assert rank() == 3
    monkeypatch.setenv("RANK", "three")
    with pytest.raises(UsageError, match="RANK='three'"):
        rank()


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    error = DataError("a bad \x1b[31mname", got="two\nlines\tand \x07\udcff\u202e", source="näme – ok.txt")
    assert str(error) == (
        "a bad \\x1b[31mname\n  got:      two\nlines\tand \\x07\\udcff\\u202e\n  source:   näme – ok.txt"
    )
