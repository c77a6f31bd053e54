"""Scores of methods and runs: files, figures, absent answers; the real HumanEval through the sandbox."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import DATA, needs_data
from vocabforge.core.errors import DataError
from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.quality import scoring
from vocabforge.evaluate.quality.scoring import score_answers
from vocabforge.evaluate.results.schema import Quality

linux = pytest.mark.skipif(sys.platform != "linux", reason="code is run on Linux only")
TASKS = ("double", "half", "name")
TESTS = ("candidate(2) == 4", "candidate(4) == 2", "candidate(0) == 'zero'")


def human_eval() -> Benchmark:
    questions = [
        Question(
            number,
            "human-eval",
            (f"def {name}(x):\n",),
            task_id=f"HumanEval/{number}",
            check={
                "prompt": f'def {name}(x):\n    """ {name} """\n',
                "entry_point": name,
                "test": f"def check(candidate):\n    assert {test}\n",
            },
        )
        for number, (name, test) in enumerate(zip(TASKS, TESTS, strict=True))
    ]
    return Benchmark("human-eval", None, "", 512, tuple(questions), scorer="human-eval")


def gsm8k(*answers: str) -> Benchmark:
    questions = [
        Question(5 + n, "gsm8k", ("How many?",), check={"answer": one}) for n, one in enumerate(answers)
    ]
    return Benchmark("gsm8k", None, "", 512, tuple(questions), scorer="gsm8k")


def rows(*texts: str | None, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"question_id": first + number, "choices": [{"turns": [text]}]}
        for number, text in enumerate(texts)
        if text is not None
    ]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


RIGHT = ("return 2 * x", "return x / 2", "return 'zero'")


@linux
def test_human_eval_over_methods(tmp_path: Path) -> None:
    answers = {
        "plain": [rows(*RIGHT)],
        "mine": [rows(RIGHT[0], "return x\ndef more", None)],
    }
    qualities = score_answers(human_eval(), answers, tmp_path, allow_code=True, prompt_format="raw")
    plain, mine = qualities["plain"], qualities["mine"]
    assert list(qualities) == ["plain", "mine"]
    assert (plain.attempted, plain.passed, plain.rate.value, plain.same_as_baseline) == (3, 3, 1.0, None)
    assert (mine.attempted, mine.passed, mine.same_as_baseline, mine.strict) == (3, 1, 1, None)
    assert mine.rate.value == pytest.approx(1 / 3)
    assert mine.rate.low is not None
    assert mine.rate.low < 1 / 3
    assert mine.files == ["human-eval/mine.jsonl_results.jsonl"]
    assert mine.facts["without an answer"] == "1"
    assert "without an answer" not in plain.facts
    samples = (tmp_path / "human-eval/mine.jsonl").read_text("utf-8")
    assert samples == (
        '{"task_id": "HumanEval/0", "completion": "    return 2 * x"}\n'
        '{"task_id": "HumanEval/1", "completion": "    return x\\n"}\n'
        '{"task_id": "HumanEval/2", "completion": ""}\n'
    )
    scored = lines(tmp_path / mine.files[0])
    assert [list(row) for row in scored] == [["task_id", "completion", "result", "passed"]] * 3
    assert [row["result"] for row in scored] == ["passed", "failed: AssertionError", "failed: no answer"]
    assert [row["passed"] for row in scored] == [True, False, False]
    Quality.model_validate(mine.model_dump())


def test_code_is_not_run_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> None:
        raise AssertionError("code was about to be run")

    monkeypatch.setattr(scoring, "Sandbox", forbidden)
    answers = {"plain": [rows(*RIGHT)]}
    assert score_answers(human_eval(), answers, tmp_path, allow_code=False, prompt_format="raw") == {}
    assert [one.name for one in (tmp_path / "human-eval").iterdir()] == ["plain.jsonl"]
    with pytest.raises(AssertionError, match="about to be run"):
        score_answers(human_eval(), answers, tmp_path, allow_code=True, prompt_format="raw")


@linux
def test_runs_have_files_and_equal_programs_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[int] = []
    original = scoring.Sandbox.run_all

    def counted(self: Any, programs: Any, description: str) -> list[str]:
        run.append(len(programs))
        return original(self, programs, description)

    monkeypatch.setattr(scoring.Sandbox, "run_all", counted)
    answers = {"plain": [rows(*RIGHT), rows("return 1", *RIGHT[1:])], "mine": [rows(*RIGHT)] * 2}
    qualities = score_answers(human_eval(), answers, tmp_path, allow_code=True, prompt_format="raw")
    assert run == [4]
    plain, mine = qualities["plain"], qualities["mine"]
    assert (plain.rate.value, plain.rate.sd) == (pytest.approx(5 / 6), pytest.approx(2**0.5 / 6))
    assert (mine.attempted, mine.passed, mine.same_as_baseline) == (6, 6, 5)
    assert mine.files == [f"human-eval/run_{run}/mine.jsonl_results.jsonl" for run in (1, 2)]
    assert all((tmp_path / file).is_file() for quality in qualities.values() for file in quality.files)
    assert lines(tmp_path / "human-eval/run_2/plain.jsonl")[0]["completion"] == "    return 1"


def test_gsm8k_over_methods_and_runs(tmp_path: Path) -> None:
    benchmark = gsm8k("so 3\n#### 3", "#### 1,200", "#### -4")
    answers = {
        "plain": [rows("#### 3", "It is $1,200.", "four", first=5)] * 2,
        "mine": [rows("#### 3", None, "-4", first=5), rows("#### 4\n3", "#### 1200\n#### 7", None, first=5)],
    }
    qualities = score_answers(benchmark, answers, tmp_path, allow_code=False, prompt_format="chat")
    plain, mine = qualities["plain"], qualities["mine"]
    assert (plain.scorer, plain.attempted, plain.passed, plain.same_as_baseline) == ("gsm8k", 6, 4, None)
    assert plain.strict == pytest.approx(2 / 6)
    assert plain.rate.sd == 0
    assert (mine.attempted, mine.passed, mine.same_as_baseline) == (6, 3, 3)
    assert mine.strict == pytest.approx(2 / 6)
    assert mine.files == ["gsm8k/run_1/mine.jsonl", "gsm8k/run_2/mine.jsonl"]
    assert lines(tmp_path / mine.files[0]) == [
        {"question_id": 5, "reference": "3", "strict": "3", "number": "3", "passed": True},
        {"question_id": 6, "reference": "1200", "strict": None, "number": None, "passed": False},
        {"question_id": 7, "reference": "-4", "strict": None, "number": "-4", "passed": True},
    ]
    assert lines(tmp_path / mine.files[1])[0]["strict"] == "4"


def test_benchmarks_without_a_scorer_and_questions_without_a_check(tmp_path: Path) -> None:
    plain = Benchmark("x", None, "", 8, (Question(0, "c", ("t",)),))
    assert score_answers(plain, {"plain": [rows("a")]}, tmp_path, allow_code=True, prompt_format="raw") == {}
    assert list(tmp_path.iterdir()) == []
    for scorer, words in (("gsm8k", "no number"), ("human-eval", "no tests")):
        broken = Benchmark("x", None, "", 8, plain.questions, scorer=scorer)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=words):
            score_answers(broken, {"plain": [rows("a")]}, tmp_path, allow_code=True, prompt_format="raw")


def _real(step: int) -> Benchmark:
    file = DATA / "human_eval/HumanEval.jsonl.gz"
    with gzip.open(file, "rt", encoding="utf-8") as handle:
        found = [json.loads(line) for line in handle]
    questions = [
        Question(number, "human-eval", (row["prompt"],), task_id=row["task_id"], check=row)
        for number, row in enumerate(found)
    ]
    return Benchmark("human-eval", file, "", 512, tuple(questions[::step]), scorer="human-eval")


def _answers(benchmark: Benchmark, form: str) -> list[dict[str, Any]]:
    return [
        {"question_id": one.question_id, "choices": [{"turns": [form.format(**(one.check or {}))]}]}
        for one in benchmark.questions
    ]


def _check_real(benchmark: Benchmark, folder: Path) -> None:
    count = len(benchmark.questions)
    raw = {
        "right": [_answers(benchmark, "{canonical_solution}")],
        "stripped": [_answers(benchmark, "{canonical_solution}\nprint({entry_point}(")],
        "wrong": [_answers(benchmark, "return None")],
    }
    for row in raw["stripped"][0]:
        row["choices"][0]["turns"][0] = row["choices"][0]["turns"][0].strip()
    qualities = score_answers(benchmark, raw, folder, allow_code=True, prompt_format="raw")
    assert [qualities[name].passed for name in raw] == [count, count, 0]
    chat = {
        "right": [_answers(benchmark, "Sure:\n```python\n{prompt}{canonical_solution}```\nIt works.")],
        "wrong": [_answers(benchmark, "```python\ndef {entry_point}(*any):\n    return None\n```")],
    }
    qualities = score_answers(benchmark, chat, folder, allow_code=True, prompt_format="chat")
    assert [qualities[name].passed for name in chat] == [count, 0]


@linux
@needs_data
@pytest.mark.shared
@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.proof)])
def test_real_solutions_pass_and_wrong_ones_fail(tmp_path: Path, step: int) -> None:
    _check_real(_real(step), tmp_path)
