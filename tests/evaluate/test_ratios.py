"""Methods of an evaluation against one of them: which ratios, when a difference is called one, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.evaluate.eval_fakes import FakeGenerator, FakeMethod, evaluate_fakes
from tests.evaluate.results_sample import sample_results
from vocabforge.core.artifact import write_artifact
from vocabforge.core.errors import ArtifactError
from vocabforge.evaluate.reports.evaluation import render_report
from vocabforge.evaluate.reports.ratios import open_evaluation, ratio_line, ratio_table, ratios_to
from vocabforge.evaluate.results.schema import RESULTS, Figure
from vocabforge.evaluate.results.settings import RunSettings

STEPS = {"chain": (3, 1, 2), "tree": (4, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of three methods, measured twice."""
    place = tmp_path_factory.mktemp("ratios")
    methods = [FakeMethod(name, FakeGenerator(steps)) for name, steps in {"plain": (1,), **STEPS}.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vocabforge.evaluate.reports.evaluation.render_report", lambda *given: "")
        evaluate_fakes(place / "eval", methods, RunSettings(32, warmup=0, repeats=2))
    return place / "eval"


def test_ratios_to_plain_decoding_are_the_figures_of_the_evaluation(folder: Path) -> None:
    """Another way to the same numbers: plain decoding accepts 1, and a speed-up is a ratio to it."""
    results = open_evaluation(folder)
    ratios = ratios_to("plain", results, folder)
    assert set(ratios) == set(STEPS)
    for method in results.compared:
        groups = {"overall": method.summary.overall, **method.summary.tasks}
        assert set(ratios[method.name]) == set(groups) == {"overall", "translation", "mt_bench", "qa"}
        for group, figures in groups.items():
            found = ratios[method.name][group]
            for name, wanted in (
                ("accepted_length", figures.accepted_length),
                ("tokens_per_s", figures.speedup),
            ):
                assert found[name].model_dump() == pytest.approx(wanted.model_dump())


def test_ratios_to_another_method(folder: Path) -> None:
    results = open_evaluation(folder)
    ratios = ratios_to("chain", results, folder)
    assert set(ratios) == {"tree"}
    lengths = {method.name: method.summary.overall.accepted_length.value for method in results.methods}
    there, back = ratios["tree"]["overall"], ratios_to("tree", results, folder)["chain"]["overall"]
    assert there["accepted_length"].value == pytest.approx(lengths["tree"] / lengths["chain"])
    assert back["accepted_length"].value == pytest.approx(lengths["chain"] / lengths["tree"])
    alone = results.model_copy(update={"baseline": False})  # servers without a plain one
    assert set(ratios_to("chain", alone, folder)) == {"plain", "tree"}


@pytest.mark.parametrize("files", [["/dev/zero"], ["../../secret"], [], ["answers/run_1/plain.jsonl"]])
def test_results_that_name_other_files_are_refused(folder: Path, tmp_path: Path, files: list[str]) -> None:
    content = json.loads((folder / RESULTS).read_text("utf-8"))
    content["methods"][1]["answers"] = files
    with write_artifact(tmp_path / "eval", "evaluation", {}) as made:
        shutil.copytree(folder / "answers", made / "answers")
        shutil.copytree(folder / "details", made / "details")
        (made / RESULTS).write_text(json.dumps(content), "utf-8")
    with pytest.raises(ArtifactError, match="do not fit their evaluation"):
        open_evaluation(tmp_path / "eval")


BETTER, WORSE = Figure(value=1.08, low=1.02, high=1.13), Figure(value=0.9, low=0.8, high=0.99)
SAME, UNKNOWN = Figure(value=1.01, low=0.97, high=1.05), Figure(value=1.2)
FEW: dict[str, Any] = {"categories": {"writing": 2, "qa": 3}, "failures": 0}


def test_a_difference_is_called_one_only_if_the_interval_excludes_one() -> None:
    results, groups = sample_results(6, 1, **FEW), ("overall", "mt_bench", "qa")
    speeds = dict(zip([method.name for method in results.methods[2:]], (BETTER, WORSE, SAME, UNKNOWN)))
    ratios = {
        name: {group: {"accepted_length": BETTER, "tokens_per_s": speed} for group in groups}
        for name, speed in speeds.items()
    }
    table, line = ratio_table("eagle3", results, ratios), ratio_line("eagle3", ratios)
    assert line == (
        "Against eagle3: eagle3+freq-32k is faster; eagle3+router is slower; eagle3+scheduled is not shown to differ "
        "in speed; eagle3+low-rank is not compared in speed."
    )
    assert ratio_line("plain", {}) == "Against plain: nothing to compare."
    console = Console(width=160, highlight=False)
    with console.capture() as capture:
        console.print(table)
    text = capture.get()
    assert re.search(r"eagle3 +overall +3\.94 +66\.8 +1\.61 *\n", text), "the reference has no ratio"
    assert re.search(r"freq-32k +overall +3\.86 ▲ +76\.4 ▲ +1\.84", text)
    assert re.search(r"router +qa +[\d.]+ ▲ +[\d.]+ ▼", text)
    assert re.search(r"scheduled +overall +3\.79 ▲ +[\d.]+ = ", text)
    assert "×1.08 [1.02–1.13]" in text
    assert "plain" in text
    assert not re.search(r"plain +qa", text)
    page = render_report(results, ratios=[line, table])
    assert "Methods against each other" in page
    assert "×1.08 [1.02–1.13]" in page


def test_a_benchmark_of_one_task_has_no_rows_of_it() -> None:
    table = ratio_table("eagle3", sample_results(3, 1, categories={"qa": 5}, failures=0), {})
    assert [row[1].text for row in table.cells] == ["overall"] * 3
