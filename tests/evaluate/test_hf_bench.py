"""hf-bench's table of times."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.results.hf_bench import write_hf_bench

ANSWER = "vXvXvXvXvXvXvXvXvXvXvX"


def answer(question_id: int, category: str, text: str = "café", **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "turns": [text],
        "decoding_steps": [2],
        "new_tokens": [3],
        "wall_time": [0.75],
        "accept_lengths": [2, 1],
        **changes,
    }
    row = {"question_id": question_id, "category": category, "answer_id": ANSWER, "model_id": "tiny-plain"}
    return row | {"choices": [choice], "tstamp": 1700000000.5}


def lay(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


# hf-bench: two methods; question 81 has two turns. plain: 5 and 3 tokens; eagle3 is twice as fast.
# TPOT of plain, example 0: (0.625 - 0.125) / (5 - 1) s = 125 ms, so 8 tokens/s; example 1: (0.5 - 0.25) / 2.
HF_BENCH = (
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
Turns = dict[int, tuple[list[int], list[float], list[float]]]
PLAIN: Turns = {81: ([5, 3], [0.125, 0.25], [0.625, 0.5]), 90: ([2], [0.25], [0.75])}
LATER: Turns = {81: ([5, 3], [0.25, 0.25], [0.75, 0.5]), 90: ([2], [0.5], [1.0])}
EAGLE3: Turns = {81: ([5, 3], [0.125, 0.25], [0.375, 0.375]), 90: ([2], [0.25], [0.5])}
DETAIL_KEYS = (
    *("index", "prompt_tokens", "token_ids", "accept_lengths", "decode_s", "timings", "target_forwards"),
    *("drafted", "drafted_by_depth", "accepted_by_depth", "finish"),
)


def hf_bench(folder: Path, *runs: dict[str, Turns], questions: Any = QUESTIONS) -> list[Path]:
    for number, methods in enumerate(runs, start=1):
        below = f"run_{number}/" if len(runs) > 1 else ""
        for name, turns in methods.items():
            answers, details = [], []
            for question_id, (tokens, prefill, wall) in turns.items():
                answers.append(
                    answer(question_id, "c", turns=["x"] * len(tokens), new_tokens=tokens, wall_time=wall)
                )
                detail = {key: [] for key in DETAIL_KEYS} | {"prefill_s": prefill}
                details.append({"question_id": question_id, "category": "c", "choices": [detail]})
            lay(folder / f"answers/{below}{name}.jsonl", answers)
            lay(folder / f"details/{below}{name}.jsonl", details)
    asked = Benchmark("spec-bench", Path("data/question.jsonl"), "0" * 64, 32, questions)
    made = write_hf_bench(folder, asked, list(runs[0]), len(runs), target="tiny", temperature=0)
    return [folder / file for file in made]


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_hf_benchs_file_byte_for_byte(tmp_path: Path) -> None:
    (path,) = hf_bench(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3})
    assert path == tmp_path / "hf-bench.csv"
    assert path.read_bytes() == HF_BENCH


@pytest.mark.parametrize(
    "turns",
    [
        ([1, 3], [0.125, 0.25], [0.375, 0.375]),  # one token: no time per token
        ([0, 3], [0.125, 0.25], [0.375, 0.375]),
        ([5, 3], [0.375, 0.25], [0.375, 0.375]),  # a clock that saw no decoding
    ],
)
def test_an_example_without_a_time_per_token_is_left_out_of_all_methods(tmp_path: Path, turns: Any) -> None:
    (path,) = hf_bench(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3 | {81: turns}})
    assert [(row["drafter"], row["example_id"], row["num_of_examples"]) for row in table(path)] == [
        (name, example, "3") for name in ("", "eagle3") for example in "12"
    ]


def test_unanswered_questions_keep_their_numbers(tmp_path: Path) -> None:
    asked = (QUESTIONS[0], Question(85, "qa", ("failed", "too")), QUESTIONS[1])
    (path,) = hf_bench(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3}, questions=asked)
    assert [row["example_id"] for row in table(path)] == ["0", "1", "4", "0", "1", "4"]
    assert {row["num_of_examples"] for row in table(path)} == {"5"}


def test_each_run_has_a_file(tmp_path: Path) -> None:
    made = hf_bench(tmp_path, {"plain": PLAIN, "eagle3": EAGLE3}, dict.fromkeys(("plain", "eagle3"), LATER))
    assert made == [tmp_path / f"hf-bench/run_{number}.csv" for number in (1, 2)]
    first, second = map(table, made)
    assert [float(row["out_toks_per_sec"]) for row in first] == [8, 8, 2, 16, 16, 4]
    assert [float(row["out_toks_per_sec"]) for row in second] == [8, 8, 2, 8, 8, 2]
