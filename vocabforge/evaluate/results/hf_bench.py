"""hf-bench's table of times, made from an evaluation's own answer rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.files import atomic_write
from ..run.settings import run_files
from .answers import read_answers, read_details

if TYPE_CHECKING:
    from ..benchmarks import Benchmark

    Row = Mapping[str, Any]

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
    positive figures, and each example of all drafters or of none.

    Returns:
        The files written, relative to ``folder``.

    Raises:
        DataError: an answer file is missing or damaged.
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
