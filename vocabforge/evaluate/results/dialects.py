"""Answer rows as other projects' evaluation code writes them, made from an evaluation's own answer rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import atomic_write
from ..run.settings import run_files
from .answers import ANSWER_KEYS, CHOICE_KEYS, read_answers, read_details, write_rows

if TYPE_CHECKING:
    from ..benchmarks import Benchmark, Question

    Row = Mapping[str, Any]
    Dialect = Callable[[Path, Benchmark, Sequence[str], int], list[str]]

# FR-Spec leaves out what its question files do not have.
_LEFT_OUT = {"human-eval": {"category"}, "gsm8k": {"question_id", "category"}}


def write_fr_spec(folder: Path, benchmark: Benchmark, methods: Sequence[str], runs: int) -> list[str]:
    """Write ``fr-spec/METHOD.jsonl`` (several runs: ``fr-spec/run_i/METHOD.jsonl``) from ``answers/``.

    A row is Spec-Bench's with ``generate_speed`` (tokens per second of each turn) at the end of its choice.
    HumanEval: no ``category``, the task's name as ``question_id``, sorted as texts, and beside it the samples
    ``METHOD_correctness.jsonl``, one for each question asked (an unanswered one is empty and so fails).
    GSM8K: neither ``question_id`` nor ``category``, in the order of the questions.

    Source: the evaluation code of FR-Spec (Zhao et al. 2025).

    Returns:
        The files written, relative to ``folder``.

    Raises:
        DataError: an answer file is missing or damaged.
    """
    answers, wanted = run_files("answers", methods, runs), run_files("fr-spec", methods, runs)
    written = []
    for name in methods:
        for source, file in zip(answers[name], wanted[name], strict=True):
            rows = {row["question_id"]: row for row in read_answers(folder / source)}
            answered = [question for question in _in_order(benchmark) if question.question_id in rows]
            made = [_fr_spec_row(rows[question.question_id], question, benchmark) for question in answered]
            write_rows(folder / file, made)
            written.append(file)
            if benchmark.scorer == "human-eval":
                beside = file.removesuffix(".jsonl") + "_correctness.jsonl"
                write_rows(
                    folder / beside, (_sample(rows.get(one.question_id), one) for one in benchmark.questions)
                )
                written.append(beside)
    return written


# name of --dialect -> what writes it.
DIALECTS: dict[str, Dialect] = {"fr-spec": write_fr_spec}


def _in_order(benchmark: Benchmark) -> list[Question]:
    """The questions in the order of FR-Spec's file: of the file for GSM8K, by its id for the others."""
    if benchmark.scorer == "gsm8k":
        return list(benchmark.questions)
    if benchmark.scorer == "human-eval":
        return sorted(benchmark.questions, key=lambda question: question.name)
    return sorted(benchmark.questions, key=lambda question: question.question_id)


def _fr_spec_row(row: Row, question: Question, benchmark: Benchmark) -> dict[str, Any]:
    values = dict(row, choices=[_fr_spec_choice(choice) for choice in row["choices"]])
    if benchmark.scorer == "human-eval":
        values["question_id"] = question.name
    left_out = _LEFT_OUT.get(benchmark.scorer or "", set())
    return {key: values[key] for key in ANSWER_KEYS if key not in left_out}


def _fr_spec_choice(choice: Row) -> dict[str, Any]:
    pairs = zip(choice["new_tokens"], choice["wall_time"], strict=True)
    # A clock too coarse for a turn must not end an evaluation.
    speeds = [tokens / seconds if seconds else 0.0 for tokens, seconds in pairs]
    return {**{key: choice[key] for key in CHOICE_KEYS}, "generate_speed": speeds}


def _sample(row: Row | None, question: Question) -> dict[str, str]:
    """FR-Spec's sample: the first answer as it is, but for odd indents, which get one more space."""
    text = row["choices"][0]["turns"][0] if row is not None else ""
    even = re.sub(r"^ +", lambda indent: indent[0] + " " * (len(indent[0]) % 2), text, flags=re.MULTILINE)
    return {"task_id": question.name, "completion": even}


HF_BENCH = "hf-bench.csv"
HF_BENCH_HEADER = (
    "target",
    "dataset_path",  # name of the benchmark
    "dataset_name",  # its question file
    "dataset_split",  # blank
    "num_of_examples",  # prompts asked
    "drafter",  # name of the method; blank for plain decoding
    "temperature",
    "example_id",  # of this prompt, from 0
    "new_toks",  # tokens of the answer, its stop token included
    "ttft_ms",  # milliseconds to the end of prefill
    "tpot_ms",  # (total - TTFT) / (new_toks - 1)
    "out_toks_per_sec",  # 1000 / tpot_ms
)


def write_hf_bench(
    folder: Path, benchmark: Benchmark, methods: Sequence[str], runs: int, *, target: str, temperature: float
) -> list[str]:
    """Write ``hf-bench.csv`` (several runs: ``hf-bench/run_i.csv``) from ``answers/`` and ``details/``.

    Each turn is an example, numbered from 0 over all turns of the questions asked, answered or not. hf-bench wants
    positive figures, and each example of all drafters or of none. Returns and errors as :func:`write_fr_spec`.
    """
    answers, details = run_files("answers", methods, runs), run_files("details", methods, runs)
    files = [HF_BENCH] if runs == 1 else [f"hf-bench/run_{number}.csv" for number in range(1, runs + 1)]
    asked = sum(len(question.turns) for question in benchmark.questions)
    for index, file in enumerate(files):
        figures = {
            name: _turn_figures(
                benchmark,
                read_answers(folder / answers[name][index]),
                read_details(folder / details[name][index]),
            )
            for name in methods
        }
        kept = [
            example for example in figures[methods[0]] if all(example in turns for turns in figures.values())
        ]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HF_BENCH_HEADER)
        for name, turns in figures.items():
            drafter = "" if name == methods[0] else name
            about = (target, benchmark.name, benchmark.file, "", asked, drafter, float(temperature))
            for example in kept:
                tokens, ttft_s, tpot_s = turns[example]
                writer.writerow((*about, example, tokens, ttft_s * 1000, tpot_s * 1000, 1 / tpot_s))
        atomic_write(folder / file, text.getvalue())
    return files


def _turn_figures(
    benchmark: Benchmark, answers: Sequence[Row], details: Sequence[Row]
) -> dict[int, tuple[int, float, float]]:
    """Example id -> tokens, TTFT and TPOT in seconds, of each answered turn that has a time per token."""
    choices = {row["question_id"]: row["choices"][0] for row in answers}
    prefill = {row["question_id"]: row["choices"][0]["prefill_s"] for row in details}
    figures: dict[int, tuple[int, float, float]] = {}
    first = 0
    for question in benchmark.questions:
        if question.question_id in choices:
            choice = choices[question.question_id]
            turns = zip(choice["new_tokens"], prefill[question.question_id], choice["wall_time"], strict=True)
            for example, (tokens, ttft_s, total_s) in enumerate(turns, start=first):
                if tokens > 1 and total_s > ttft_s:
                    figures[example] = tokens, ttft_s, (total_s - ttft_s) / (tokens - 1)
        first += len(question.turns)
    return figures
