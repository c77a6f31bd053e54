"""docs/formats.md names the keys of the study's check and times, and of the comparison of draft heads."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from tests.docs.doc_formats import keys, tables
from vocabforge.evaluate.acceptance.meter import pooled
from vocabforge.study.draft_heads import FULL, summarise
from vocabforge.study.stage_check import _CheckFile, accepted_length, compare_cycles, sums
from vocabforge.study.times.stage import StudyTimes
from vocabforge.tune.types import HeadSetting, TreeSetting

CHECK, TIMES, HEADS = "Check of a study", "Times of a study", "Comparison of draft heads"


@pytest.mark.parametrize(
    ("heading", "table", "model"),
    [(CHECK, 0, _CheckFile), (TIMES, 0, StudyTimes)],
)
def test_the_page_names_the_keys_of_a_file(heading: str, table: int, model: type[BaseModel]) -> None:
    fields = {name for name, field in model.model_fields.items() if not field.exclude}
    assert keys(heading, table) == fields


@pytest.mark.parametrize(("row", "model"), [("heads", HeadSetting), ("trees", TreeSetting)])
def test_the_page_names_sizes(row: str, model: type[BaseModel]) -> None:
    said = next(cells[1] for cells in tables(TIMES)[0] if cells[0] == f"`{row}`")
    assert [name for name in model.model_fields if f"`{name}`" not in said] == []


def test_the_page_names_the_figures_of_a_check() -> None:
    cycles = compare_cycles([], [], [], None)  # type: ignore[arg-type]
    assert keys(CHECK, 2) == set(cycles)
    outputs = {"outputs", "identical", "different"}
    assert keys(CHECK, 1) == set(accepted_length([])) | outputs | {"replay"}
    said = next(cells[1] for cells in tables(CHECK)[0] if cells[0] == "`totals`")
    assert [name for name in sums([]) if f"`{name}`" not in said] == []


def test_the_page_names_the_rows_of_a_comparison_of_heads() -> None:
    one = {"method": FULL, "setting": "", "scored": 1, "accepted_length": 2.0, "identical": 1, "prompts": 1}
    assert keys(HEADS, 1) == set(summarise({0: [one]})[0])
    assert keys(HEADS, 2) == set(pooled([])) | {
        "method",
        "setting",
        "scored",
        "size",
        "identical",
        "different",
    }
