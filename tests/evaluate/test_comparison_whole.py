"""Whole evaluations compared: the figures are those that each wrote, quality is read from its verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evaluate.eval_fakes import ROWS, FakeGenerator, FakeMethod, make_benchmark, make_tokenizer
from vocabforge.core.errors import DataError
from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.comparison.compare import compare_runs
from vocabforge.evaluate.comparison.figures import read_verdicts
from vocabforge.evaluate.comparison.results import RunComparison
from vocabforge.evaluate.comparison.runs import open_runs
from vocabforge.evaluate.results.schema import Results
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.evaluate.run.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.run.settings import RunSettings

QUESTIONS = 8


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluations' own pages are not looked at here."""
    monkeypatch.setattr("vocabforge.evaluate.reports.evaluation.render_report", lambda results: "")


def sums(references: dict[int, str]) -> Benchmark:
    """Questions that GSM8K's scorer judges."""
    questions = tuple(
        Question(number, "gsm8k", (f"w{number} w7",), check={"answer": references[number]})
        for number in range(QUESTIONS)
    )
    return Benchmark("sums", Path("sums.jsonl"), "0" * 64, 32, questions, "gsm8k", "gsm8k")


def evaluated(
    folder: Path, benchmark: Benchmark, methods: dict[str, FakeGenerator], repeats: int = 1
) -> Results:
    return evaluate_methods(
        folder,
        Evaluation(
            benchmark,
            [FakeMethod(name, generator) for name, generator in methods.items()],
            make_tokenizer(folder.parent / "tokenizer"),
            RunSettings(32, warmup=0, repeats=repeats),
            Provenance("tiny", describe_environment(device="cpu", dtype="float32"), "ab" * 32, "cd" * 32),
        ),
    )


def compared(*folders: Path, reference: str | None = None) -> RunComparison:
    return compare_runs(open_runs([str(folder) for folder in folders]), reference=reference)


def test_figures_are_those_that_the_evaluations_wrote(tmp_path: Path) -> None:
    """Another way to the same numbers: values, deviations and intervals of ``summary.py``."""
    benchmark = make_benchmark(ROWS)
    one = evaluated(
        tmp_path / "A", benchmark, {"plain": FakeGenerator(), "chain": FakeGenerator((3, 1, 2))}, 2
    )
    two = evaluated(tmp_path / "B", benchmark, {"plain": FakeGenerator(), "tree": FakeGenerator((4, 2))})
    found = compared(tmp_path / "A", tmp_path / "B")
    rows = {row.name: row for row in found.methods}
    checked = 0
    for label, results in (("A", one), ("B", two)):
        for method in results.methods:
            groups = {"overall": method.summary.overall, **method.summary.tasks}
            assert set(rows[f"{label}:{method.name}"].figures) == set(groups) == set(found.groups)
            for group, figures in groups.items():
                for name, mine in rows[f"{label}:{method.name}"].figures[group].items():
                    wanted = getattr(figures, name)
                    assert mine.model_dump() == pytest.approx(wanted.model_dump()), (
                        label,
                        method.name,
                        group,
                        name,
                    )
                    checked += mine.value is not None
    assert checked == 4 * len(found.groups) * 4
    assert [row.identical for row in found.outputs] == [4], "plain decoding alone is in both"
    assert found.differences_of("overall")["B:tree", "accepted_length"].verdict == "better"
    assert {len(row.seeds) * row.repeats for row in found.runs} == {1, 2}


def test_right_answers_are_compared_from_the_verdicts(tmp_path: Path) -> None:
    plain, same, broken = FakeGenerator(), FakeGenerator((3,)), FakeGenerator((3,), corrupt=6)
    # What plain decoding ends with becomes the right answer.
    evaluated(tmp_path / "first", sums(dict.fromkeys(range(QUESTIONS), "1")), {"plain": plain})
    rows = map(json.loads, (tmp_path / "first" / "gsm8k" / "plain.jsonl").read_text().splitlines())
    benchmark = sums({row["question_id"]: row["number"] for row in rows})
    first = evaluated(tmp_path / "A", benchmark, {"plain": plain, "same": same, "broken": broken})
    second = evaluated(tmp_path / "B", benchmark, {"plain": plain, "same": same})
    found = compared(tmp_path / "A", tmp_path / "B", reference="A:same")
    shares = {row.name: row.figures["overall"]["quality"] for row in found.methods}
    for label, results in (("A", first), ("B", second)):
        for method in results.methods:
            assert method.summary.quality is not None
            assert shares[f"{label}:{method.name}"] == method.summary.quality.rate
    assert (shares["A:same"].value, shares["A:broken"].value) == (1.0, 0.0)
    differences = found.differences_of("overall")
    assert differences["A:broken", "quality"].verdict == "worse"
    assert differences["B:same", "quality"].verdict == "no difference shown"


def test_verdicts_are_read_by_question_and_by_task(tmp_path: Path) -> None:
    file = tmp_path / "verdicts.jsonl"
    file.write_text('{"question_id": 7, "passed": true}\n{"question_id": 3, "passed": false}\n', "utf-8")
    assert read_verdicts(file) == {7: True, 3: False}
    row = {"task_id": "HumanEval/12", "completion": "", "result": "passed", "passed": True}
    file.write_text(json.dumps(row) + "\n", "utf-8")
    assert read_verdicts(file) == {12: True}
    for text in ('{"passed": true}\n', "{\n", '{"question_id": 1}\n'):
        file.write_text(text, "utf-8")
        with pytest.raises(DataError, match="verdicts"):
            read_verdicts(file)
