"""Files that name the version of their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from vocabforge.core.config import StrictModel
from vocabforge.core.errors import DataError
from vocabforge.core.records import read_versioned


class Figures(StrictModel):
    schema_version: Literal[3] = 3
    lengths: tuple[float, ...]


def read(path: Path, content: Any) -> Figures:
    path.write_text(json.dumps(content), "utf-8")
    return read_versioned(path, Figures, 3, what="file of lengths", remedy="measure again")


def test_what_was_written_is_read(tmp_path: Path) -> None:
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
