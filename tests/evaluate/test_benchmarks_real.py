"""The published question files themselves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.worlds import DATA, needs_data
from vocabforge.evaluate.benchmarks import (
    BENCHMARKS,
    FORMATS,
    MT_BENCH,
    asked_sha256,
    load_benchmark,
    read_questions,
    spread,
)

pytestmark = [pytest.mark.shared, needs_data]


@pytest.mark.parametrize(("name", "count"), [("spec-bench", 480), ("human-eval", 164), ("gsm8k", 1319)])
def test_the_files_are_the_published_ones(name: str, count: int) -> None:
    row = BENCHMARKS[name]
    benchmark = load_benchmark(name, data=DATA)
    assert benchmark.published is True
    assert benchmark.path == DATA / row.files[0]
    assert benchmark.sha256 == row.sources[0].sha256
    assert len(benchmark.questions) == benchmark.of == count
    assert benchmark.max_new_tokens == FORMATS[row.format].max_new_tokens


def test_spec_bench() -> None:
    questions = read_questions(DATA / "spec_bench" / "question.jsonl")
    counts = Counter(question.category for question in questions)
    tasks = ("translation", "summarization", "qa", "math_reasoning", "rag")
    assert counts == {**dict.fromkeys(MT_BENCH, 10), **dict.fromkeys(tasks, 80)}
    assert [question.question_id for question in questions] == list(range(81, 561))
    assert {len(question.turns) for question in questions if question.category in MT_BENCH} == {2}
    assert {len(question.turns) for question in questions if question.category in tasks} == {1}
    assert {question.category for question in spread(questions, 48)} == set(counts)


def test_human_eval_is_the_same_in_both_places() -> None:
    packed = load_benchmark("human-eval", data=DATA)
    plain = load_benchmark(str(DATA / "human_eval" / "question.jsonl"))
    assert (
        plain.sha256
        == BENCHMARKS["human-eval"].sources[0].unpacked
        == BENCHMARKS["human-eval"].sources[1].sha256
    )
    assert (plain.format, plain.questions) == ("human-eval", packed.questions)
    assert [question.question_id for question in packed.questions] == list(range(164))
    assert all("def " in question.turns[0] for question in packed.questions)


def test_gsm8k_is_the_same_as_json_lines_and_as_parquet(tmp_path: Path) -> None:
    lines = load_benchmark("gsm8k", data=DATA)
    (tmp_path / "gsm8k").mkdir()
    file = "test-00000-of-00001.parquet"
    (tmp_path / "gsm8k" / file).symlink_to(DATA.resolve() / "gsm8k" / file)
    table = load_benchmark("gsm8k", data=tmp_path)
    assert (table.file, table.published) == (file, True)
    assert asked_sha256(table.questions) == asked_sha256(lines.questions)
    assert table.questions == lines.questions
    assert load_benchmark(str(DATA / "gsm8k" / "train.jsonl.xz"), limit=7).of == 7473


@pytest.mark.parametrize(
    ("file", "count", "turns"),
    [
        ("dummy_conversation.json", 500, 1),
        ("kto_en_demo.json.xz", 300, 1),
        ("glaive_toolcall_zh_demo.json.xz", 300, 2),
        ("reason_tool_use_demo_50.jsonl", 50, 1),
        ("v1_sft_demo.jsonl", 500, 1),
    ],
)
def test_conversations(file: str, count: int, turns: int) -> None:
    benchmark = load_benchmark(str(DATA / "chat" / file))
    assert (benchmark.format, benchmark.of) == ("chat", count)
    assert max(len(question.turns) for question in benchmark.questions) >= turns
