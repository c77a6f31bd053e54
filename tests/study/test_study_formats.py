"""docs/formats.md names the keys of the study's check and times."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tests.docs.doc_formats import keys, tables
from vocabforge.decode.trees.shapes import chain
from vocabforge.study.stage_check import StudyCheck, compare_cycles, compare_outputs, sums
from vocabforge.study.times.stage import StudyTimes
from vocabforge.tune.types import HeadSetting, TreeSetting

CHECK, TIMES = "Check of a study", "Times of a study"


@pytest.mark.parametrize(
    ("heading", "table", "model"),
    [(CHECK, 0, StudyCheck), (TIMES, 0, StudyTimes)],
)
def test_the_page_names_the_keys_of_a_file(heading: str, table: int, model: type[BaseModel]) -> None:
    fields = {name for name, field in model.model_fields.items() if not field.exclude}
    assert keys(heading, table) == fields


@pytest.mark.parametrize(("row", "model"), [("heads", HeadSetting), ("trees", TreeSetting)])
def test_the_page_names_sizes(row: str, model: type[BaseModel]) -> None:
    said = next(cells[1] for cells in tables(TIMES)[0] if cells[0] == f"`{row}`")
    assert [name for name in model.model_fields if f"`{name}`" not in said] == []


def test_the_page_names_the_figures_of_a_check() -> None:
    nothing: list[Any] = []
    assert keys(CHECK, 2) == set(compare_cycles(nothing, nothing, nothing, chain(1)))
    outputs = compare_outputs(nothing, nothing, 1, None, "greedy")  # type: ignore[arg-type]
    assert keys(CHECK, 1) == {*outputs, "replay"}
    said = next(cells[1] for cells in tables(CHECK)[0] if cells[0] == "`totals`")
    assert [name for name in sums(nothing) if f"`{name}`" not in said] == []
