"""Score the answers of all methods and runs, and write the verdicts next to them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from ...corpus.tokenizer.prompt_format import PromptFormat
from ..benchmarks import Benchmark, gsm8k
from ..results.answers import Row, write_rows
from ..results.schema import Figure, Quality
from ..results.settings import run_files
from . import human_eval
from .sandbox import PASSED, Sandbox

Z95 = 1.959963984540054  # 97.5% quantile of the normal distribution
INTERVAL = "95% Wilson score interval over questions; further runs of a question do not narrow it"
RESULTS_SUFFIX = "_results.jsonl"
NO_ANSWER = "failed: no answer"

# method -> run -> question id -> answer; method -> run -> rows in question order
Texts = Mapping[str, Sequence[Mapping[int, str]]]
Rows = dict[str, list[list[dict[str, Any]]]]


def score_answers(
    benchmark: Benchmark,
    answers: Mapping[str, Sequence[Sequence[Row]]],
    folder: Path,
    *,
    allow_code: bool,
    prompt_format: PromptFormat,
) -> dict[str, Quality]:
    """Score every answer of a benchmark that has a scorer; a question without an answer is wrong.

        answers: method -> run -> answer rows, plain decoding first.
        folder: folder for the verdicts: ``gsm8k/``, or ``human-eval/`` with the samples.
        allow_code: run generated code; otherwise HumanEval's samples are written but not scored.

    Raises:
        DataError: a question lacks data that its scorer needs.
        VocabForgeError: code cannot be run here (check with ``require_sandbox`` first).
    """
    if not answers or benchmark.scorer is None:
        return {}
    # These benchmarks have a single turn.
    texts = {
        method: [{row["question_id"]: row["choices"][0]["turns"][-1] for row in rows} for rows in runs]
        for method, runs in answers.items()
    }
    if benchmark.scorer == "gsm8k":
        facts = {
            "rule": "exact match as numbers: the first line ending in '#### n', else the last number",
            "strict": "right in the form '#### n'",
        }
        return _qualities(benchmark, _score_gsm8k(benchmark, texts), texts, facts, folder)
    samples = _samples(benchmark, texts, prompt_format)
    for method, files in _files(benchmark, texts).items():
        for file, rows in zip(files, samples[method], strict=True):
            write_rows(folder / file, rows)
    if not allow_code:
        return {}
    sandbox = Sandbox()
    scored = _score_human_eval(benchmark, samples, texts, sandbox)
    rule = "pass@1: the benchmark's tests, prompt + completion joined as the public scorer does"
    return _qualities(
        benchmark, scored, texts, {"rule": rule, **sandbox.facts()}, folder, suffix=RESULTS_SUFFIX
    )


def require_sandbox() -> dict[str, str]:
    """Describe how generated code would be run; call this before an evaluation.

    Raises:
        VocabForgeError: code cannot be run here.
    """
    return Sandbox().facts()


def _samples(benchmark: Benchmark, texts: Texts, prompt_format: PromptFormat) -> Rows:
    """Return rows ``{"task_id", "completion"}`` for every question of the benchmark."""
    checks = {one.question_id: human_eval.require_check(one.check, one.name) for one in benchmark.questions}

    def completion(answers: Mapping[int, str], number: int) -> str:
        text = answers.get(number)
        return "" if text is None else human_eval.completion_of(text, checks[number], prompt_format)

    return {
        method: [
            [
                {"task_id": one.name, "completion": completion(answers, one.question_id)}
                for one in benchmark.questions
            ]
            for answers in runs
        ]
        for method, runs in texts.items()
    }


def _score_human_eval(benchmark: Benchmark, samples: Rows, texts: Texts, sandbox: Sandbox) -> Rows:
    checks = {one.name: one.check or {} for one in benchmark.questions}

    def program(row: Row) -> str:
        return human_eval.program(checks[row["task_id"]], row["completion"])

    # Greedy runs and lossless methods mostly agree, so each distinct program runs only once.
    programs = list(dict.fromkeys(program(row) for runs in samples.values() for rows in runs for row in rows))
    results = dict(zip(programs, sandbox.run_all(programs, "HumanEval programs"), strict=True))
    scored: Rows = {}
    for method, runs in samples.items():
        scored[method] = []
        for answers, rows in zip(texts[method], runs, strict=True):
            told = [
                results[program(row)] if one.question_id in answers else NO_ANSWER
                for one, row in zip(benchmark.questions, rows, strict=True)
            ]
            scored[method].append(
                [{**row, "result": one, "passed": one == PASSED} for row, one in zip(rows, told, strict=True)]
            )
    return scored


def _score_gsm8k(benchmark: Benchmark, texts: Texts) -> Rows:
    references = {
        one.question_id: gsm8k.reference_number(
            (one.check or {}).get("answer", ""), f"question {one.question_id}"
        )
        for one in benchmark.questions
    }

    def row(number: int, text: str) -> dict[str, Any]:
        score = gsm8k.score(text, references[number])
        return {
            "question_id": number,
            "reference": str(references[number]),
            "strict": None if score.marked is None else str(score.marked),
            "number": None if score.number is None else str(score.number),
            "passed": score.passed,
        }

    return {
        method: [[row(number, answers.get(number, "")) for number in references] for answers in runs]
        for method, runs in texts.items()
    }


def _qualities(
    benchmark: Benchmark,
    scored: Rows,
    texts: Texts,
    facts: Mapping[str, str],
    folder: Path,
    suffix: str = "",
) -> dict[str, Quality]:
    """Compute the figures of all methods and write their verdicts."""
    baseline, qualities = next(iter(scored.values())), {}
    for method, files in _files(benchmark, texts).items():
        runs, files = scored[method], [file + suffix for file in files]
        for file, rows in zip(files, runs, strict=True):
            write_rows(folder / file, rows)
        every = [row for rows in runs for row in rows]
        plain = [row["passed"] for rows in baseline for row in rows]
        missing = len(every) - sum(map(len, texts[method]))
        strict = None
        if benchmark.scorer == "gsm8k" and every:
            exact = [row["strict"] and Decimal(row["strict"]) == Decimal(row["reference"]) for row in every]
            strict = sum(map(bool, exact)) / len(every)
        qualities[method] = Quality(
            scorer="gsm8k" if benchmark.scorer == "gsm8k" else "human-eval",
            attempted=len(every),
            passed=sum(row["passed"] for row in every),
            rate=rate([[row["passed"] for row in rows] for rows in runs]),
            strict=strict,
            same_as_baseline=None
            if runs is baseline
            else sum(row["passed"] == one for row, one in zip(every, plain, strict=True)),
            files=files,
            facts={
                **facts,
                "interval": INTERVAL,
                **({"without an answer": str(missing)} if missing > 0 else {}),
            },
        )
    return qualities


def _files(benchmark: Benchmark, texts: Texts) -> dict[str, list[str]]:
    runs = len(next(iter(texts.values())))
    return run_files(benchmark.scorer or "", list(texts), runs)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's score interval (JASA 22, 1927) of a share of ``count`` independent trials.

    Unlike a bootstrap interval, it is not empty if all or none succeed.
    """
    centre = share + Z95**2 / (2 * count)
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def rate(verdicts: Sequence[Sequence[bool]]) -> Figure:
    """Return the share of right answers in (runs, questions) with deviation over runs and interval."""
    questions = len(verdicts[0]) if verdicts else 0
    if questions == 0:
        return Figure()
    shares = [sum(run) / questions for run in verdicts]
    value = statistics.fmean(shares)
    low, high = wilson(value, questions) if questions > 1 else (None, None)
    return Figure(value=value, sd=statistics.stdev(shares) if len(shares) > 1 else None, low=low, high=high)
