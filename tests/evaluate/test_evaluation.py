"""A whole evaluation: files of the artefact, figures, outputs, resuming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.eval_fakes import ROWS, FakeGenerator, FakeMethod, make_benchmark, make_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import UsageError
from vocabforge.evaluate.benchmarks import Benchmark
from vocabforge.evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.results.schema import Results, read_results
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.environment import describe_environment


def make(
    folder: Path,
    *extra: FakeMethod,
    benchmark: Benchmark | None = None,
    settings: RunSettings | None = None,
    target: str = "ab" * 32,
) -> Evaluation:
    return Evaluation(
        benchmark or make_benchmark(ROWS),
        [FakeMethod("plain", FakeGenerator()), FakeMethod("eagle3", FakeGenerator((3, 1, 2))), *extra],
        make_tokenizer(folder / "tokenizer"),
        settings or RunSettings(32, warmup=1),
        Provenance(
            target="tiny-target",
            environment=describe_environment(device="cpu", dtype="float32"),
            fingerprint=target,
            parents={"target": target},
            command=["vocabforge", "eval", "--target", "a b"],
        ),
    )


def evaluate(folder: Path, *extra: FakeMethod, overwrite: bool = False, **options: Any) -> Results:
    return evaluate_methods(folder / "out", make(folder, *extra, **options), overwrite=overwrite)


def test_the_folder_is_a_verified_artefact(tmp_path: Path) -> None:
    results = evaluate(tmp_path)
    artifact = open_artifact(tmp_path / "out", "evaluation")
    rows = {f"{kind}/{name}.jsonl" for kind in ("answers", "details") for name in ("plain", "eagle3")}
    assert set(artifact.manifest["files"]) == {*rows, "failures.jsonl", "results.json", "report.html"}
    assert read_results(tmp_path / "out") == results
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert 'title="draft step 2, accepted length 3"' in page
    assert results.environment["dtype"] == "float32"
    assert results.command == "vocabforge eval --target 'a b'"
    assert results.parents == {"target": "ab" * 32}
    assert (results.benchmark.questions, results.benchmark.of, results.answered) == (4, 4, 4)
    assert (results.resumed, results.failures) == (0, [])
    with pytest.raises(UsageError, match="exists already"):
        evaluate(tmp_path)
    evaluate(tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tokenizer"]


def test_outputs_that_agree_and_a_method_that_lies(tmp_path: Path) -> None:
    # Prompts longer than 8 tokens: the second turns of questions 3 and 5.
    wrong = FakeMethod("broken", FakeGenerator((2,), corrupt=4, corrupt_from=8))
    results = evaluate(tmp_path, wrong)
    good, bad = (method.summary.outputs for method in results.methods[1:])
    assert good is not None
    assert (good.identical, good.compared, good.divergences) == (4, 4, [])
    assert bad is not None
    assert (bad.identical, bad.compared, bad.not_judged) == (2, 4, 2)
    assert [(row.question_id, row.turn, row.position) for row in bad.divergences] == [(3, 1, 4), (5, 1, 4)]
    assert bad.divergences[0].expected != bad.divergences[0].got


def test_questions_left_out_stand_in_results_and_report(tmp_path: Path) -> None:
    results = evaluate(tmp_path, FakeMethod("short", FakeGenerator(too_long=16)))
    assert results.answered == 3
    (failure,) = results.failures
    assert (failure.question_id, failure.method, failure.kind) == (5, "short", "DataError")
    (row,) = (tmp_path / "out" / "failures.jsonl").read_text("utf-8").splitlines()
    assert json.loads(row) == failure.model_dump()
    assert {group.questions for group in (one.summary.overall for one in results.methods)} == {3}
    assert "does not fit the cache" in (tmp_path / "out" / "report.html").read_text("utf-8")
