"""Scores the answers of all methods and runs, and writes the verdicts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..benchmarks import Benchmark, Question
from ..results.answers import Row, write_rows
from ..results.schema import Quality
from ..run.prompts import PromptFormat
from ..run.settings import run_files
from . import gsm8k, human_eval
from .gsm8k import INTERVAL, rate
from .sandbox import PASSED, Sandbox

RESULTS_SUFFIX = "_results.jsonl"
NO_ANSWER = "failed: no answer"

Texts = Mapping[str, Sequence[Mapping[int, str]]]
# (methods) -> (runs, questions)
Verdicts = Mapping[str, Sequence[Sequence[bool]]]


def score_answers(
    benchmark: Benchmark,
    answers: Mapping[str, Sequence[Sequence[Row]]],
    folder: Path,
    *,
    allow_code: bool,
    prompt_format: PromptFormat,
) -> dict[str, Quality]:
    """Score every answer of a benchmark that has a scorer; a question without an answer is wrong.

    Args:
        answers: method -> run -> answer rows; plain decoding first.
        folder: where files of verdicts are written: ``gsm8k/``, or ``human-eval/`` with the samples.
        allow_code: run generated code; without it, HumanEval's samples are written and not scored.
        prompt_format: how the model was asked.

    Returns:
        method -> figures; nothing where nothing is scored.

    Raises:
        DataError: a question lacks what its scorer needs.
        VocabForgeError: code cannot be run here (``require_sandbox`` says so beforehand).
    """
    texts = {method: [_texts(rows) for rows in runs] for method, runs in answers.items()}
    if not texts or benchmark.scorer is None:
        return {}
    if benchmark.scorer == "gsm8k":
        return _score_gsm8k(benchmark, texts, folder)
    samples = write_samples(benchmark, texts, folder, prompt_format)
    return _score_human_eval(benchmark, samples, texts, folder) if allow_code else {}


def require_sandbox() -> dict[str, str]:
    """How generated code would be run here, in words; called before an evaluation begins.

    Raises:
        VocabForgeError: it cannot be run here.
    """
    return Sandbox().facts()


def write_samples(
    benchmark: Benchmark, texts: Texts, folder: Path, prompt_format: PromptFormat
) -> dict[str, list[list[dict[str, str]]]]:
    """Write ``human-eval/METHOD.jsonl``, a row ``{"task_id", "completion"}`` for every question of the benchmark.

    Returns:
        method -> run -> rows, in the order of the questions.
    """
    samples = {}
    for method, files in _files("human-eval", texts).items():
        samples[method] = [
            [_sample(one, run, prompt_format) for one in benchmark.questions] for run in texts[method]
        ]
        for file, rows in zip(files, samples[method], strict=True):
            write_rows(folder / file, rows)
    return samples


def _sample(question: Question, texts: Mapping[int, str], prompt_format: PromptFormat) -> dict[str, str]:
    check = human_eval.require_check(question.check, question.name)
    text = texts.get(question.question_id)
    completion = "" if text is None else human_eval.completion_of(text, check, prompt_format)
    return {"task_id": question.name, "completion": completion}


def _score_human_eval(
    benchmark: Benchmark, samples: Mapping[str, list[list[dict[str, str]]]], texts: Texts, folder: Path
) -> dict[str, Quality]:
    checks = {one.name: one.check or {} for one in benchmark.questions}
    # Greedy runs and lossless methods mostly agree: each distinct program runs once, and gets one verdict.
    programs = {
        human_eval.program(checks[row["task_id"]], row["completion"]): ""
        for runs in samples.values()
        for rows in runs
        for row in rows
    }
    sandbox = Sandbox()
    results = dict(zip(programs, sandbox.run_all(list(programs), "HumanEval programs"), strict=True))
    facts = sandbox.facts()
    verdicts: dict[str, list[list[bool]]] = {}
    files = {
        name: [file + RESULTS_SUFFIX for file in each] for name, each in _files("human-eval", texts).items()
    }
    for method, runs in samples.items():
        verdicts[method] = []
        for number, rows in enumerate(runs):
            scored, passed = [], []
            for question, row in zip(benchmark.questions, rows, strict=True):
                answered = question.question_id in texts[method][number]
                program = human_eval.program(checks[row["task_id"]], row["completion"])
                result = results[program] if answered else NO_ANSWER
                passed.append(result == PASSED)
                scored.append({**row, "result": result, "passed": passed[-1]})
            write_rows(folder / files[method][number], scored)
            verdicts[method].append(passed)
    rule = "pass@1: the benchmark's tests, prompt + completion joined as the public scorer does"
    return _qualities("human-eval", verdicts, files, texts, {"rule": rule, **facts})


def _score_gsm8k(benchmark: Benchmark, texts: Texts, folder: Path) -> dict[str, Quality]:
    references = {
        one.question_id: gsm8k.reference_number(
            (one.check or {}).get("answer", ""), f"question {one.question_id}"
        )
        for one in benchmark.questions
    }
    verdicts: dict[str, list[list[bool]]] = {}
    marked: dict[str, int] = {}
    files = _files("gsm8k", texts)
    for method, runs in texts.items():
        verdicts[method], marked[method] = [], 0
        for file, answers in zip(files[method], runs, strict=True):
            scored = {
                key: gsm8k.score(answers.get(key, ""), reference) for key, reference in references.items()
            }
            write_rows(folder / file, [_gsm8k_row(key, references[key], one) for key, one in scored.items()])
            verdicts[method].append([one.passed for one in scored.values()])
            marked[method] += sum(one.passed_marked for one in scored.values())
    facts = {
        "rule": "exact match as numbers: the first line ending in '#### n', else the last number",
        "strict": "right in the form '#### n'",
    }
    qualities = _qualities("gsm8k", verdicts, files, texts, facts)
    return {
        method: one.model_copy(update={"strict": marked[method] / one.attempted if one.attempted else None})
        for method, one in qualities.items()
    }


def _gsm8k_row(question_id: int, reference: Any, score: gsm8k.Score) -> dict[str, Any]:
    return {
        "question_id": question_id,
        "reference": str(reference),
        "strict": None if score.marked is None else str(score.marked),
        "number": None if score.number is None else str(score.number),
        "passed": score.passed,
    }


def _qualities(
    scorer: Literal["gsm8k", "human-eval"],
    verdicts: Verdicts,
    files: Mapping[str, list[str]],
    texts: Texts,
    facts: Mapping[str, str],
) -> dict[str, Quality]:
    baseline = next(iter(verdicts))
    qualities = {}
    for method, runs in verdicts.items():
        attempted = sum(map(len, runs))
        missing = attempted - sum(map(len, texts[method]))
        same = sum(
            mine == theirs
            for run, reference in zip(runs, verdicts[baseline], strict=True)
            for mine, theirs in zip(run, reference, strict=True)
        )
        qualities[method] = Quality(
            scorer=scorer,
            attempted=attempted,
            passed=sum(map(sum, runs)),
            rate=rate(runs),
            same_as_baseline=None if method == baseline else same,
            files=list(files[method]),
            facts={
                **facts,
                "interval": INTERVAL,
                **({"without an answer": str(missing)} if missing > 0 else {}),
            },
        )
    return qualities


def _texts(rows: Sequence[Row]) -> dict[int, str]:
    """question id -> the answer of its last turn (these benchmarks have one)."""
    return {row["question_id"]: row["choices"][0]["turns"][-1] for row in rows}


def _files(kind: str, texts: Texts) -> dict[str, list[str]]:
    return run_files(kind, list(texts), len(next(iter(texts.values()))))
