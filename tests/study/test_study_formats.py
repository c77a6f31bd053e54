"""docs/formats.md names the keys of the study's check."""

from __future__ import annotations

from typing import Any

from tests.docs.doc_formats import keys, tables
from vocabforge.decode.trees.shapes import chain
from vocabforge.study.report.results import Checked, Decoded
from vocabforge.study.stages.check import compare_cycles, compare_outputs

CHECK = "Check of a study"


def test_the_page_names_the_keys_and_figures_of_a_check() -> None:
    nothing: list[Any] = []
    assert keys(CHECK, 0) == set(Checked.model_fields)
    assert keys(CHECK, 2) == set(compare_cycles(nothing, nothing, nothing, chain(1)))
    outputs = compare_outputs(nothing, nothing, 1, None, "greedy")  # type: ignore[arg-type]
    assert keys(CHECK, 1) == {*outputs, "replay"}
    said = next(cells[1] for cells in tables(CHECK)[0] if cells[0] == "`modes`")
    assert [name for name in Decoded.model_fields if f"`{name}`" not in said] == []
