"""Dataclasses read from JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from vocabforge.core.records import read_record


@dataclass(frozen=True)
class Part:
    name: str
    rows: int
    ids: tuple[int, ...]
    more: dict[str, int]


GOOD: dict[str, Any] = {"name": "a", "rows": 0, "ids": [3, 4], "more": {"x": 1}}


def test_what_fits_is_read() -> None:
    assert read_record(Part, GOOD) == Part("a", 0, (3, 4), {"x": 1})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": ["a"]}, "name"),
        ({"name": None}, "name"),
        ({"rows": -1}, "rows"),
        ({"rows": True}, "rows"),
        ({"rows": 1.0}, "rows"),
        ({"ids": [1, "x"]}, "ids"),
        ({"ids": "12"}, "ids"),
        ({"ids": 3}, "iterable"),
        ({"other": 1}, "other"),
    ],
)
def test_what_does_not_is_a_type_error(change: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        read_record(Part, GOOD | change)


def test_a_missing_key_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="rows"):
        read_record(Part, {key: value for key, value in GOOD.items() if key != "rows"})
