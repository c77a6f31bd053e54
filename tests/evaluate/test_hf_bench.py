from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.results.dialects import write_hf_bench

DETAIL_KEYS = (
    *("index", "prompt_tokens", "token_ids", "accept_lengths", "prefill_s", "decode_s", "timings"),
    *("target_forwards", "drafted", "drafted_by_depth", "accepted_by_depth", "finish"),
)
# Two methods; question 81 has two turns. plain: 5 and 3 tokens; eagle3 is twice as fast.
# TPOT of plain, example 0: (0.625 - 0.125) / (5 - 1) s = 125 ms, so 8 tokens/s; example 1: (0.5 - 0.25) / 2.
GOLDEN = (
    b"target,dataset_path,dataset_name,dataset_split,num_of_examples,drafter,temperature,example_id,"
    b"new_toks,ttft_ms,tpot_ms,out_toks_per_sec\n"
    b"tiny,spec-bench,question.jsonl,,3,,0.0,0,5,125.0,125.0,8.0\n"
    b"tiny,spec-bench,question.jsonl,,3,,0.0,1,3,250.0,125.0,8.0\n"
    b"tiny,spec-bench,question.jsonl,,3,,0.0,2,2,250.0,500.0,2.0\n"
    b"tiny,spec-bench,question.jsonl,,3,eagle3,0.0,0,5,125.0,62.5,16.0\n"
    b"tiny,spec-bench,question.jsonl,,3,eagle3,0.0,1,3,250.0,62.5,16.0\n"
    b"tiny,spec-bench,question.jsonl,,3,eagle3,0.0,2,2,250.0,250.0,4.0\n"
)
QUESTIONS = (Question(81, "writing", ("one", "two")), Question(90, "qa", ("three",)))
# question -> (new_tokens, prefill seconds, wall seconds) of its turns
PLAIN = {81: ([5, 3], [0.125, 0.25], [0.625, 0.5]), 90: ([2], [0.25], [0.75])}
LATER = {81: ([5, 3], [0.25, 0.25], [0.75, 0.5]), 90: ([2], [0.5], [1.0])}
EAGLE3 = {81: ([5, 3], [0.125, 0.25], [0.375, 0.375]), 90: ([2], [0.25], [0.5])}


def lay(folder: Path, file: str, turns: dict[int, tuple[list, list, list]]) -> None:
    for kind in ("answers", "details"):
        (folder / kind / file).parent.mkdir(parents=True, exist_ok=True)
    answers, details = [], []
    for question_id, (tokens, prefill, wall) in turns.items():
        choice = {
            "index": 0,
            "turns": ["x"] * len(tokens),
            "decoding_steps": tokens,
            "new_tokens": tokens,
            "wall_time": wall,
            "accept_lengths": [1] * sum(tokens),
        }
        answers.append(
            {
                "question_id": question_id,
                "category": "c",
                "answer_id": "a",
                "model_id": "m",
                "choices": [choice],
            }
            | {"tstamp": 1.0}
        )
        detail = {key: [] for key in DETAIL_KEYS} | {"prefill_s": prefill}
        details.append({"question_id": question_id, "category": "c", "choices": [detail]})
    for kind, rows in (("answers", answers), ("details", details)):
        (folder / kind / file).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write(folder: Path, methods: dict[str, dict], questions: tuple[Question, ...] = QUESTIONS) -> Path:
    for name, turns in methods.items():
        lay(folder, f"{name}.jsonl", turns)
    benchmark = Benchmark("spec-bench", Path("data/question.jsonl"), "0" * 64, 32, questions)
    (file,) = write_hf_bench(folder, benchmark, list(methods), 1, target="tiny", temperature=0)
    return folder / file


def read(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_file_byte_for_byte(tmp_path: Path) -> None:
    path = write(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3})
    assert path == tmp_path / "hf-bench.csv"
    assert path.read_bytes() == GOLDEN


@pytest.mark.parametrize(
    "turns",
    [
        ([1, 3], [0.125, 0.25], [0.375, 0.375]),  # one token: no time per token
        ([0, 3], [0.125, 0.25], [0.375, 0.375]),
        ([5, 3], [0.375, 0.25], [0.375, 0.375]),  # a clock that saw no decoding
    ],
)
def test_an_example_without_a_time_per_token_is_left_out_of_all_methods(
    tmp_path: Path, turns: tuple[list, list, list]
) -> None:
    path = write(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3 | {81: turns}})
    assert [(row["drafter"], row["example_id"]) for row in read(path)] == [
        ("", "1"),
        ("", "2"),
        ("eagle3", "1"),
        ("eagle3", "2"),
    ]
    assert {row["num_of_examples"] for row in read(path)} == {"3"}


def test_unanswered_questions_keep_their_numbers(tmp_path: Path) -> None:
    asked = (QUESTIONS[0], Question(85, "qa", ("failed", "too")), QUESTIONS[1])
    path = write(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3}, asked)
    rows = read(path)
    assert [row["example_id"] for row in rows] == ["0", "1", "4", "0", "1", "4"]
    assert {row["num_of_examples"] for row in rows} == {"5"}


def test_each_run_has_a_file(tmp_path: Path) -> None:
    for name, turns in (("plain", PLAIN), ("eagle3", EAGLE3)):
        lay(tmp_path, f"run_1/{name}.jsonl", turns)
        lay(tmp_path, f"run_2/{name}.jsonl", LATER)
    benchmark = Benchmark("spec-bench", None, "0" * 64, 32, QUESTIONS)
    made = write_hf_bench(tmp_path, benchmark, ["plain", "eagle3"], 2, target="tiny", temperature=0.5)
    assert made == ["hf-bench/run_1.csv", "hf-bench/run_2.csv"]
    first, second = (read(tmp_path / file) for file in made)
    assert [float(row["out_toks_per_sec"]) for row in first] == [8, 8, 2, 16, 16, 4]
    assert [float(row["out_toks_per_sec"]) for row in second] == [8, 8, 2, 8, 8, 2]
    assert [float(row["ttft_ms"]) for row in second] == [250, 250, 500, 250, 250, 500]
    assert {float(row["temperature"]) for row in second} == {0.5}
