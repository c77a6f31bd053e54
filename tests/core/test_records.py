"""Typed values read from JSON: records of an artefact, and files that name the version of their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic.dataclasses import dataclass

from vocabforge.core.config import RECORD, StrictModel
from vocabforge.core.errors import DataError
from vocabforge.core.records import Count, read_record, read_versioned


@dataclass(frozen=True, config=RECORD)
class Part:
    name: str
    rows: Count
    ids: tuple[Count, ...]
    more: dict[str, int]


GOOD: dict[str, Any] = {"name": "a", "rows": 0, "ids": [3, 4], "more": {"x": 1}}


def test_a_record_is_read() -> None:
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
        ({"other": 1}, "other"),
        ({"rows": ...}, "rows"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    values = {key: value for key, value in (GOOD | change).items() if value is not ...}
    with pytest.raises(ValueError, match=named):
        read_record(Part, values)


class Figures(StrictModel):
    schema_version: Literal[3] = 3
    lengths: tuple[float, ...]


def read(path: Path, content: Any) -> Figures:
    path.write_text(json.dumps(content), "utf-8")
    return read_versioned(path, Figures, 3, what="file of lengths", remedy="measure again")


def test_a_file_of_this_version_is_read(tmp_path: Path) -> None:
    figures = Figures(lengths=(1.5, 2.0))
    assert read(tmp_path / "a.json", figures.model_dump(mode="json")) == figures


@pytest.mark.parametrize("content", [{"lengths": []}, {"schema_version": "3", "lengths": []}, [3]])
def test_another_version_says_what_to_do(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match="the file of lengths is of another version") as caught:
        read(tmp_path / "a.json", content)
    assert (caught.value.expected, caught.value.remedy) == (3, "measure again")
    assert caught.value.source == tmp_path / "a.json"


@pytest.mark.parametrize(
    ("lengths", "place"), [([1.0, "2"], "lengths.1"), (["x"], "lengths.0"), (None, "lengths")]
)
def test_a_wrong_value_is_named_by_its_place(tmp_path: Path, lengths: Any, place: str) -> None:
    with pytest.raises(DataError, match="does not fit its schema") as caught:
        read(tmp_path / "a.json", {"schema_version": 3, "lengths": lengths})
    assert str(caught.value.got).startswith(f"{place}:")
