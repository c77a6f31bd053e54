"""``vocabforge report``: the methods of an evaluation against one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.cli_support import assert_user_error, facts_of, invoke, succeeds
from tests.cli.every_kind import make_evaluation


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of plain decoding and two drafters."""
    folder = tmp_path_factory.mktemp("report") / "eval"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocabforge.evaluate.reports.evaluation.render_report", lambda *given: "")
        make_evaluation(folder, ngram=(2, 1))
    return folder


def test_the_methods_are_compared_on_the_terminal_and_on_a_page(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vocabforge.evaluate.reports.evaluation.render_report", lambda results, ratios: f"page: {ratios[0]}"
    )
    page = tmp_path / "made" / "comparison.html"
    done = succeeds("report", run, "--reference", "eagle3", "--output", page)
    for words in ("ratios to eagle3", "1.60 ▼", "Against eagle3: ngram is", f"Report: {page}"):
        assert words in done.stdout, words
    assert page.read_text("utf-8").startswith("page: Against eagle3: ngram is")
    assert "ratios to" in invoke("report", run).stdout, "a reference is chosen"


def test_json_has_the_ratios(run: Path) -> None:
    found = facts_of(invoke("report", run, "--reference", "ngram", "--json"))
    assert (found["reference"], found["questions"], found["notes"]) == ("ngram", 4, [])
    assert found["ratios"].keys() == {"eagle3"}
    assert found["ratios"]["eagle3"]["overall"]["accepted_length"]["low"] > 1


def test_mistakes_end_before_any_work(run: Path, tmp_path: Path) -> None:
    assert_user_error(invoke("report", run, "--reference", "nrgam"), 2, "did you mean ngram?")
    for output in (tmp_path / "page.txt", tmp_path):
        assert_user_error(invoke("report", run, "--output", output), 2, "name of an HTML file")
    assert_user_error(
        invoke("report", tmp_path / "nowhere"), 1, "not a VocabForge artefact", "no such folder"
    )
    two = invoke("report", run, run)
    assert two.exit_code == 2
    assert "unexpected extra argument" in two.output
