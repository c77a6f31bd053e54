"""``vocabforge report``: several evaluations beside each other, or the methods of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, invoke
from tests.evaluate.comparison_support import Made, write_run
from vocabforge.evaluate.comparison.compare import RunComparison


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that may be compared, and one that may not."""
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "before", Made(questions=12))
    write_run(folder / "after", Made(questions=12, methods={"plain": (1,), "eagle3": (4, 3)}, machine=0.8))
    write_run(folder / "longer", Made(questions=12, settings={"max_new_tokens": 99, "prompt_format": "raw"}))
    return folder


def test_two_runs_beside_each_other(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vocabforge.evaluate.comparison.report.render_comparison",
        lambda comparison: f"page against {comparison.reference}",
    )
    page = tmp_path / "made" / "comparison.html"
    done = invoke("report", runs / "before", f"new={runs / 'after'}", "--output", page)
    assert done.exit_code == 0, done.output
    for words in (
        "before:eagle3",
        "new:eagle3",
        "ratios to before:eagle3",
        "new:eagle3 is",
        f"Report: {page}",
    ):
        assert words in done.stdout, words
    assert "Warning: the machine was not equally fast" in " ".join(done.stderr.split())
    assert page.read_text("utf-8") == "page against before:eagle3"


def test_json_is_the_comparison(runs: Path) -> None:
    done = invoke("report", runs / "before", runs / "after", "--reference", "after:eagle3", "--json")
    assert done.exit_code == 0, done.output
    found = RunComparison.model_validate(json.loads(done.stdout))
    assert (found.reference, found.questions) == ("after:eagle3", 12)
    row = next(row for row in found.methods if row.name == "before:eagle3")
    assert row.ratios["overall"]["accepted_length"].high < 1
    assert done.stderr == "", "notes are in the JSON"
    assert any("equally fast" in line for line in found.notes)


def test_runs_that_are_not_comparable_are_refused_with_all_reasons(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    done = invoke("report", runs / "before", runs / "longer", "--output", page)
    assert_user_error(
        done, 1, "cannot be compared", "before longer", "max new tokens 24 99", "prompt format chat raw"
    )
    assert not page.exists()


def test_one_runs_own_methods_against_one_of_them(runs: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "many", Made(questions=12, methods={"plain": (1,), "eagle3": (3, 2), "small": (2,)}))
    for words in ([], ["--reference", "eagle3"]):
        done = invoke("report", tmp_path / "many", *words)
        assert done.exit_code == 0, done.output
        assert "ratios to many:eagle3" in done.stdout
    full = invoke("report", tmp_path / "many", "--reference", "many:eagle3", "--json")
    found = RunComparison.model_validate(json.loads(full.stdout))
    row = next(row for row in found.methods if row.name == "many:small")
    assert row.ratios["overall"]["accepted_length"].high < 1


def test_mistakes_end_before_any_work(runs: Path, tmp_path: Path) -> None:
    one, two = runs / "before", runs / "after"
    assert_user_error(invoke("report", one, "--reference", "medusa"), 2, "before:medusa", "before:eagle3")
    assert_user_error(invoke("report", one, two, "--reference", "eagle3"), 2, "before:eagle3", "RUN:METHOD")
    for output in (tmp_path / "page.txt", tmp_path):
        assert_user_error(invoke("report", one, two, "--output", output), 2, "name of an HTML file")
    assert_user_error(
        invoke("report", one, tmp_path / "nowhere"), 1, "not a VocabForge artefact", "no such folder"
    )
