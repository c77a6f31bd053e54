"""How values are written: sizes, ``KEY=VALUE``, and the commands that take them."""

from __future__ import annotations

import pytest

from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.core.values import parse_count, parse_size, sizes_in, split_pair, words_in, yaml_pairs
from vocabforge.decode.build.heads import parse_dynamic
from vocabforge.decode.spec import MethodSpec


def test_a_size_has_one_spelling_everywhere() -> None:
    assert [parse_size(text) for text in ("16384", "16k", "16K", 16384)] == [16384] * 4
    assert sizes_in("--size", ["8k, 16k", "300"]) == (8192, 16384, 300)
    assert sizes_in("--size", "8k,300") == (8192, 300)
    assert sizes_in("--size", None) == ()
    assert MethodSpec(shortlist="2k").shortlist == 2048  # type: ignore[arg-type]
    assert parse_dynamic("context:2k") == 2048
    assert words_in(["a, b", "c"]) == ("a", "b", "c")


@pytest.mark.parametrize("text", ["16kk", "k", "-3", "1.5k", "x", "16 k b"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="16384 or 16k"):
        parse_size(text)
    with pytest.raises(UsageError, match="--size"):
        sizes_in("--size", text)


def test_a_number_of_tokens_has_decimal_multiples() -> None:
    written = {
        "1B": 10**9,
        "500M": 5 * 10**8,
        "10_000": 10_000,
        "1e9": 10**9,
        "1.5b": 15 * 10**8,
        "20k": 20_000,
    }
    assert {text: parse_count(text) for text in written} == written
    assert (parse_count("7"), parse_count(7), parse_count(None)) == (7, 7, None)


@pytest.mark.parametrize("text", ["", "B", "-3", "1.5", "1e-3", "1e999", "16 k b", "1 billion", "nan", "_1"])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write 1B, 500M"):
        parse_count(text)


def test_bounds_of_lists() -> None:
    with pytest.raises(UsageError, match="0"):
        sizes_in("--size", "0,3", least=1)


def test_pairs() -> None:
    assert split_pair(" a =b=c", expected="A=B") == ("a", "b=c")
    assert yaml_pairs(["a=false", "b=20", "c="], "--body") == {"a": False, "b": 20, "c": None}
    for wrong in ("a", "=3"):
        with pytest.raises(ConfigError, match="--body KEY=VALUE"):
            yaml_pairs([wrong], "--body")
    with pytest.raises(ConfigError, match="a YAML value"):
        yaml_pairs(["a=[1"], "--body")
