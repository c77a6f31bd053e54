"""Tables of a study: Markdown, figures in cells, and what stands on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from vocabforge.evaluate.results.schema import Figure
from vocabforge.study.report.plots import main_methods, main_shape
from vocabforge.study.report.results import Cell, StudyResults
from vocabforge.study.report.tables import (
    checked_part,
    decoded_part,
    length,
    methods_table,
    percent,
    points,
    rare_part,
    share,
    speed_part,
    study_parts,
)


def cell(value: float | None, **spread: float) -> Cell:
    figure = Figure(value=value, **spread)
    return Cell(
        accepted_by_seed=[], accepted=figure, share_by_seed=[], share=figure, tokens=1, cycles=1, predicted={}
    )


def test_figures_in_cells() -> None:
    assert length(cell(2.614, sd=0.018)) == "2.61 ±0.02"
    assert length(cell(2.614)) == "2.61"
    assert length(None) == length(cell(None)) == share(None) == share(cell(None)) == "–"
    assert share(cell(0.98512, sd=0.001, low=0.982, high=0.988)) == "98.5 ±0.1 [98.2–98.8]"
    assert share(cell(0.98512, sd=0.001, low=0.982, high=0.988), between=False) == "98.5 ±0.1"
    assert share(cell(1.0, low=1.0, high=1.0)) == "100.0"
    assert (percent(0.0135), percent(0.216), percent(1.0), percent(None)) == ("1.35%", "21.6%", "100.0%", "–")
    assert points(cell(0.681), cell(0.904)) == "-22.3"
    assert points(cell(1.0), cell(1.0)) == "+0.0"
    assert points(None, cell(1.0)) == "–"


def test_every_table_is_whole(results: StudyResults) -> None:
    parts = study_parts(results)
    keys = [part.key for part in parts]
    assert keys[:2] == ["methods", "speed"]
    assert {"categories", "rare", "drawn", "coverage", "lossless", "decoded"} <= set(keys)
    for part in parts:
        assert all(len(row) == len(part.columns) for row in part.rows), part.key
        assert all(isinstance(one, str) and one for row in part.rows for one in row), part.key
        assert not part.keys or len(part.keys) == len(part.rows), part.key
        words = ("easured", "redicted")
        assert any(word in part.note for word in words), part.key


def test_rare_data_stand_beside_all(results: StudyResults) -> None:
    part = rare_part(results)
    assert part.columns[1:3] == ["the benchmark, %", "rare data, %"]
    assert {"human-eval, %", "rare, %", "coding, %"} <= set(part.columns)
    static = next(row for row in part.rows if row[0] == "FR-Spec, R = 32,768")
    assert float(static[-1]) < -5  # the made-up static vocabularies lose there


def test_speeds_have_ratios_to_the_full_head(results: StudyResults) -> None:
    part = speed_part(results)
    assert len(part.columns) == 1 + len(results.columns) * len(results.shapes)
    at = list(part.columns).index("8B shape, roofline: tree 60")
    ratios = {row[0]: row[at].split(" ")[1] for row in part.rows}
    assert ratios[results.methods[0].label] == "(1.00×)"
    full, other = (results.methods[place].at("tree 60") for place in (0, 2))
    expected = other.predicted["roofline"].tokens_per_s / full.predicted["roofline"].tokens_per_s  # type: ignore[union-attr]
    assert ratios[results.methods[2].label] == f"({expected:.2f}×)"
    assert "arithmetic" in part.note


def test_the_check(results: StudyResults) -> None:
    part = checked_part(results)
    assert [row[0] for row in part.rows] == [
        "chain, greedy",
        "chain, temperature 1",
        "dynamic tree, greedy",
    ]
    assert part.rows[0][-1] == "2,400 of 2,400 (120 outputs)"
    assert part.rows[2][-1] == "–"
    assert len(decoded_part(results).rows) == len(results.methods)
    bare = results.model_copy(update={"checked": None})
    assert not checked_part(bare).rows
    assert not decoded_part(bare).rows


def test_one_method_stands_for_a_family(results: StudyResults) -> None:
    found = main_methods(results)
    assert len({one.family for one in found}) == len(found) == len({one.family for one in results.methods})
    assert main_shape(results) == "tree 60"
    for one in found:
        speeds = {
            other.key: other.at("tree 60").predicted["roofline"].tokens_per_s  # type: ignore[union-attr]
            for other in results.methods
            if other.family == one.family
        }
        assert one.key == max(speeds, key=lambda key: speeds[key])


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal(results: StudyResults, width: int, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w+", encoding="utf-8") as file:
        out = Console(width=width, file=file)
        out.print(methods_table(results))
        file.seek(0)
        text = file.read()
    assert max(map(len, text.splitlines())) <= width
    assert "predicted" in text
