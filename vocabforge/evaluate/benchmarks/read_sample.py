"""The project's own questions, made in memory."""

from __future__ import annotations

from ...corpus.sample_writer import sample_questions, spec_bench_rows
from .read_spec_bench import question_of
from .types import Question


def make_sample() -> list[Question]:
    """The questions that ``vocabforge demo`` asks: nothing that its drafter was trained on."""
    rows = spec_bench_rows(sample_questions())
    return [question_of(row, f"sample:{number}") for number, row in enumerate(rows, start=1)]
