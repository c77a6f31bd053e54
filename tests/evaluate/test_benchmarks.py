"""Benchmarks by name and by path, where they are looked for, and Spec-Bench's format."""

from __future__ import annotations

import hashlib
import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest

from vocabforge.core.errors import DataError, UsageError
from vocabforge.demo import PROMPTS, QUESTIONS
from vocabforge.evaluate.benchmarks import (
    BENCHMARKS,
    Question,
    Source,
    asked_sha256,
    load_benchmark,
    read_questions,
)
from vocabforge.evaluate.benchmarks.find import file_of

GOOD = {"question_id": 1, "category": "qa", "turns": ["why?"], "reference": ["because"], "source": "x"}


def write(path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_reads_rows_and_ignores_other_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", GOOD, "", {"question_id": 0, "category": "rag", "turns": ["a", "b"]})
    first, second = read_questions(path)
    assert (first.question_id, first.category, first.turns) == (1, "qa", ("why?",))
    assert (second.question_id, second.turns) == (0, ("a", "b"))


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
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path / "absent.jsonl")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder and cache; nothing may be fetched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VOCABFORGE_DATA", raising=False)
    monkeypatch.setenv("VOCABFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def place(folder: Path, *rows: object, file: str = "spec_bench/question.jsonl") -> Path:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    return write(folder / file, *(rows or (GOOD,)))


def test_names_paths_and_limits(bare: Path) -> None:
    with pytest.raises(UsageError, match="did you mean spec-bench"):
        load_benchmark("spec_bench")
    with pytest.raises(UsageError, match="a folder"):
        load_benchmark(str(bare))
    path = write(bare / "mine.jsonl", *({**GOOD, "question_id": n} for n in range(10)))
    with pytest.raises(UsageError, match="at least 1"):
        load_benchmark(str(path), limit=0)
    benchmark = load_benchmark(str(path), limit=4)
    assert (benchmark.name, benchmark.format) == ("mine", "spec-bench")
    assert [question.question_id for question in benchmark.questions] == [0, 2, 5, 7]
    assert (benchmark.of, benchmark.published, benchmark.file) == (10, None, "mine.jsonl")
    assert benchmark.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_data_folders_are_searched_in_order(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [place(bare / "cache" / "benchmarks")]
    found.append(place(Path("data")))
    found.append(place(bare / "named"))
    found.append(place(bare / "given"))
    monkeypatch.setenv("VOCABFORGE_DATA", str(bare / "named"))
    assert load_benchmark("spec-bench", data=bare / "given").path == found[3]
    assert load_benchmark("spec-bench").path == found[2]
    monkeypatch.delenv("VOCABFORGE_DATA")
    assert load_benchmark("spec-bench").path == found[1]
    found[1].unlink()
    assert load_benchmark("spec-bench").path == found[0]
    # Every place is looked through, also where --data names a folder that has no such file.
    (bare / "empty").mkdir()
    assert load_benchmark("spec-bench", data=bare / "empty").path == found[0]
    with pytest.raises(UsageError, match="data folder is missing"):
        load_benchmark("spec-bench", data=bare / "absent")


def test_an_absent_file_is_named_with_its_source_and_every_place(bare, monkeypatch):
    monkeypatch.setenv("VOCABFORGE_DATA", str(bare / "named"))
    with pytest.raises(DataError) as caught:
        load_benchmark("human-eval")
    row = BENCHMARKS["human-eval"]
    text = caught.value.render()
    assert "questions of the benchmark human-eval are not on this machine" in text
    assert "nothing may be fetched (HF_HUB_OFFLINE=1)" in text
    for source in row.sources:
        assert source.url in text
        assert source.sha256 in text
    for folder in (bare / "named", Path("data"), bare / "cache" / "benchmarks"):
        for file in row.files:
            assert f" {folder / file}\n" in text
    assert f"put the first of these files at {bare / 'named' / row.files[0]}" in text


@pytest.mark.parametrize("name", ["scrolls-qasper", "speed-bench"])
def test_a_benchmark_that_is_not_one_file_is_put_there_by_hand(bare, monkeypatch, capsys, name):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    row = BENCHMARKS[name]
    with pytest.raises(DataError, match="no single file can be fetched") as caught:
        load_benchmark(name)
    assert row.about in caught.value.render()
    assert f"put the first of these files at data/{row.files[0]}" in caught.value.render()
    monkeypatch.setattr(
        "vocabforge.evaluate.benchmarks.load.read_format", lambda *_: [Question(0, "a", ("b",))]
    )
    (bare / "data" / row.files[0]).parent.mkdir(parents=True)
    (bare / "data" / row.files[0]).write_text("rows")
    assert load_benchmark(name).published is None
    assert capsys.readouterr().err == ""


def test_a_found_file_is_compared_with_the_published_one(bare, monkeypatch, capsys):
    path = place(Path("data"))
    assert load_benchmark("spec-bench").published is False
    assert "data/spec_bench/question.jsonl is not the published file of spec-bench" in capsys.readouterr().err
    content = path.read_bytes()
    source = Source("x/question.jsonl", "0" * 64, hashlib.sha256(content).hexdigest())
    row = replace(BENCHMARKS["spec-bench"], sources=(source,))
    monkeypatch.setitem(BENCHMARKS, "spec-bench", row)
    assert load_benchmark("spec-bench").published is True
    assert capsys.readouterr().err == ""


def test_the_sample_is_the_demos_questions(bare: Path) -> None:
    sample = load_benchmark("sample")
    assert sample.questions == tuple(read_questions(QUESTIONS))
    assert (sample.path, sample.file, sample.format) == (None, "part of VocabForge", "spec-bench")
    assert sample.sha256 == asked_sha256(sample.questions)
    assert (sample.published, sample.of) == (None, 45)
    assert {len(question.turns) for question in sample.questions} == {1, 2}
    assert len({question.category for question in load_benchmark("sample", limit=9).questions}) == 9


def test_no_question_of_the_sample_is_a_prompt_of_the_demo() -> None:
    rows = map(json.loads, lzma.decompress(PROMPTS.read_bytes()).decode().splitlines())
    prompts = {row["turns"][0] for row in rows}
    assert len(prompts) > 1000
    assert not prompts & {question.turns[0] for question in load_benchmark("sample").questions}


def test_every_row_of_the_table_is_whole() -> None:
    for name, row in BENCHMARKS.items():
        assert bool(row.files) == (name != "sample")
        assert row.sources or not row.files or "huggingface.co/datasets/" in row.about
        for source in row.sources:
            assert file_of(row, source) in row.files
            assert source.url.startswith("https://")
            commit = source.about.rpartition(" ")[2]
            assert f"/{commit}" in source.url
            for digest in filter(None, (source.sha256, source.unpacked)):
                assert len(bytes.fromhex(digest)) == 32


def test_what_is_asked_has_a_hash_of_its_own() -> None:
    one, two = Question(1, "qa", ("a", "b")), Question(2, "qa", ("c",))
    same = asked_sha256([one, two])
    # What is not asked does not count.
    assert asked_sha256([replace(one, category="rag", task_id="A/1"), two]) == same
    changed = [
        replace(one, **change) for change in ({"question_id": 3}, {"system": "s"}, {"turns": ("b", "a")})
    ]
    others = [[two, one], [one], *([other, two] for other in changed)]
    assert len({same, *map(asked_sha256, others)}) == len(others) + 1
