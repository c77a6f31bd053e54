from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support import DATA, needs_data
from vocabforge.core.errors import DataError, UsageError
from vocabforge.evaluate.benchmarks import MT_BENCH, load_benchmark, read_questions, spread

GOOD = {"question_id": 1, "category": "qa", "turns": ["why?"], "reference": ["because"], "source": "x"}


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_reads_rows_and_ignores_other_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", GOOD, "", {"question_id": 0, "category": "rag", "turns": ["a", "b"]})
    first, second = read_questions(path)
    assert (first.question_id, first.category, first.turns, first.reference) == (
        1,
        "qa",
        ("why?",),
        ("because",),
    )
    assert (second.question_id, second.turns, second.reference) == (0, ("a", "b"), None)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('{"question_id": 2, "categ', "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ({"question_id": 2, "turns": ["a"]}, "category"),
        ({"category": "qa", "turns": ["a"]}, "question_id"),
        ({"question_id": 2, "category": "qa"}, "turns"),
        ({"question_id": "2", "category": "qa", "turns": ["a"]}, "question_id"),
        ({"question_id": True, "category": "qa", "turns": ["a"]}, "question_id"),
        ({"question_id": 2, "category": "qa", "turns": []}, "turns"),
        ({"question_id": 2, "category": "qa", "turns": "a"}, "turns"),
        ({"question_id": 2, "category": "qa", "turns": ["a", ""]}, "turns"),
        ({"question_id": 1, "category": "qa", "turns": ["a"]}, "twice"),
    ],
)
def test_a_wrong_row_is_reported_with_its_line(tmp_path: Path, row: object, expected: str) -> None:
    path = write(tmp_path / "q.jsonl", GOOD, row)
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert expected in caught.value.render()
    assert f"{path}:2" in caught.value.render()


def test_invalid_utf8_and_empty_and_absent_files(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(json.dumps(GOOD).encode() + b'\n{"question_id": 2, "category": "\xff"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        read_questions(bad)
    with pytest.raises(DataError, match="no question"):
        read_questions(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(DataError, match="cannot read"):
        read_questions(tmp_path / "absent.jsonl")


def test_names_paths_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VOCABFORGE_DATA", raising=False)
    with pytest.raises(UsageError, match="did you mean spec-bench"):
        load_benchmark("spec_bench")
    with pytest.raises(DataError, match=r"put .* at ./data/spec_bench/question.jsonl"):
        load_benchmark("spec-bench")
    path = write(tmp_path / "mine.jsonl", *({**GOOD, "question_id": n} for n in range(10)))
    with pytest.raises(UsageError, match="at least 1"):
        load_benchmark(str(path), limit=0)
    benchmark = load_benchmark(str(path), limit=4)
    assert benchmark.name == "mine"
    assert [question.question_id for question in benchmark.questions] == [0, 2, 5, 7]
    (tmp_path / "data" / "spec_bench").mkdir(parents=True)
    path.rename(tmp_path / "data" / "spec_bench" / "question.jsonl")
    assert len(load_benchmark("spec-bench").questions) == 10
    monkeypatch.setenv("VOCABFORGE_DATA", str(tmp_path / "data"))
    assert load_benchmark("spec-bench").path == tmp_path / "data" / "spec_bench" / "question.jsonl"


def test_spread_keeps_all_when_there_are_few(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path / "q.jsonl", GOOD))
    assert spread(questions, 3) == questions


@needs_data
def test_the_real_spec_bench_file() -> None:
    questions = read_questions(DATA / "spec_bench" / "question.jsonl")
    counts = Counter(question.category for question in questions)
    tasks = ("translation", "summarization", "qa", "math_reasoning", "rag")
    assert counts == {**dict.fromkeys(MT_BENCH, 10), **dict.fromkeys(tasks, 80)}
    assert [question.question_id for question in questions] == list(range(81, 561))
    assert {len(question.turns) for question in questions if question.category in MT_BENCH} == {2}
    assert {len(question.turns) for question in questions if question.category in tasks} == {1}
    assert {question.category for question in spread(questions, 48)} == set(counts)
