from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from vocabforge.cli.decode.eval import OutcomeOptions
from vocabforge.core.errors import DataError
from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.results.dialects import DIALECTS, write_fr_spec

ANSWER = "vXvXvXvXvXvXvXvXvXvXvX"
CHOICE = (
    b'"choices": [{"index": 0, "turns": ["caf\\u00e9"], "decoding_steps": [2], "new_tokens": [3], '
    b'"wall_time": [0.75], "accept_lengths": [2, 1], "generate_speed": [4.0]}], "tstamp": 1700000000.5}\n'
)
REST = b'"answer_id": "vXvXvXvXvXvXvXvXvXvXvX", "model_id": "tiny-plain", ' + CHOICE


def answer(question_id: int, category: str, text: str = "café", seconds: float = 0.75) -> dict:
    choice = {
        "index": 0,
        "turns": [text],
        "decoding_steps": [2],
        "new_tokens": [3],
        "wall_time": [seconds],
        "accept_lengths": [2, 1],
    }
    return {
        "question_id": question_id,
        "category": category,
        "answer_id": ANSWER,
        "model_id": "tiny-plain",
        "choices": [choice],
        "tstamp": 1700000000.5,
    }


def lay(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def benchmark(questions: list[Question], scorer: str | None = None) -> Benchmark:
    return Benchmark("tiny", None, "0" * 64, 32, tuple(questions), scorer=scorer)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def human_eval(count: int) -> Benchmark:
    return benchmark(
        [Question(n, "human-eval", ("x",), task_id=f"HumanEval/{n}") for n in range(count)], "human-eval"
    )


def test_a_spec_bench_row_byte_for_byte(tmp_path: Path) -> None:
    lay(tmp_path / "answers" / "plain.jsonl", [answer(81, "writing")])
    made = write_fr_spec(tmp_path, benchmark([Question(81, "writing", ("one",))]), ["plain"], 1)
    assert made == ["fr-spec/plain.jsonl"]
    assert (tmp_path / made[0]).read_bytes() == b'{"question_id": 81, "category": "writing", ' + REST


def test_a_human_eval_row_byte_for_byte(tmp_path: Path) -> None:
    lay(tmp_path / "answers" / "plain.jsonl", [answer(0, "human-eval")])
    made = write_fr_spec(tmp_path, human_eval(1), ["plain"], 1)
    assert made == ["fr-spec/plain.jsonl", "fr-spec/plain_correctness.jsonl"]
    assert (tmp_path / made[0]).read_bytes() == b'{"question_id": "HumanEval/0", ' + REST
    assert (tmp_path / made[1]).read_bytes() == b'{"task_id": "HumanEval/0", "completion": "caf\\u00e9"}\n'


def test_a_gsm8k_row_byte_for_byte(tmp_path: Path) -> None:
    lay(tmp_path / "answers" / "plain.jsonl", [answer(7, "gsm8k")])
    made = write_fr_spec(tmp_path, benchmark([Question(7, "gsm8k", ("one",))], "gsm8k"), ["plain"], 1)
    assert made == ["fr-spec/plain.jsonl"]
    assert (tmp_path / made[0]).read_bytes() == b"{" + REST


def test_rows_stand_in_the_order_of_fr_spec(tmp_path: Path) -> None:
    # by number; by the text of the task's name; as the file has them
    spec = benchmark([Question(n, "qa", ("x",)) for n in (10, 9, 100)])
    lay(tmp_path / "s" / "answers" / "plain.jsonl", [answer(n, "qa") for n in (9, 10, 100)])
    write_fr_spec(tmp_path / "s", spec, ["plain"], 1)
    assert [row["question_id"] for row in rows_of(tmp_path / "s/fr-spec/plain.jsonl")] == [9, 10, 100]

    lay(tmp_path / "h" / "answers" / "plain.jsonl", [answer(n, "human-eval") for n in range(12)])
    write_fr_spec(tmp_path / "h", human_eval(12), ["plain"], 1)
    names = [row["question_id"] for row in rows_of(tmp_path / "h/fr-spec/plain.jsonl")]
    assert names[:5] == ["HumanEval/0", "HumanEval/1", "HumanEval/10", "HumanEval/11", "HumanEval/2"]

    gsm = benchmark([Question(n, "gsm8k", ("x",)) for n in (3, 1, 2)], "gsm8k")
    lay(tmp_path / "g" / "answers" / "plain.jsonl", [answer(n, "gsm8k", text=f"t{n}") for n in (1, 2, 3)])
    write_fr_spec(tmp_path / "g", gsm, ["plain"], 1)
    texts = [row["choices"][0]["turns"] for row in rows_of(tmp_path / "g/fr-spec/plain.jsonl")]
    assert texts == [["t3"], ["t1"], ["t2"]]


def test_every_turn_has_a_speed(tmp_path: Path) -> None:
    row = answer(81, "writing")
    row["choices"][0] |= {"turns": ["a", "b"], "new_tokens": [3, 10], "wall_time": [0.5, 4.0]}
    lay(tmp_path / "answers" / "plain.jsonl", [row, answer(82, "writing", seconds=0.0)])
    asked = benchmark([Question(81, "writing", ("one", "two")), Question(82, "writing", ("x",))])
    write_fr_spec(tmp_path, asked, ["plain"], 1)
    speeds = [row["choices"][0]["generate_speed"] for row in rows_of(tmp_path / "fr-spec/plain.jsonl")]
    assert speeds == [[6.0, 2.5], [0.0]]


def test_several_runs_and_methods_have_files_of_their_own(tmp_path: Path) -> None:
    for run in (1, 2):
        for name in ("plain", "eagle3"):
            lay(tmp_path / f"answers/run_{run}/{name}.jsonl", [answer(1, "qa", text=f"{name} {run}")])
    made = write_fr_spec(tmp_path, benchmark([Question(1, "qa", ("x",))]), ["plain", "eagle3"], 2)
    assert made == [f"fr-spec/run_{run}/{name}.jsonl" for name in ("plain", "eagle3") for run in (1, 2)]
    for run in (1, 2):
        (row,) = rows_of(tmp_path / f"fr-spec/run_{run}/eagle3.jsonl")
        assert row["choices"][0]["turns"] == [f"eagle3 {run}"]


def test_an_unanswered_task_has_an_empty_sample_and_odd_indents_are_made_even(tmp_path: Path) -> None:
    text = "a = 1\n   b = 2\n  c = 3\n d\n\n   \nreturn  e"
    lay(tmp_path / "answers" / "plain.jsonl", [answer(1, "human-eval", text=text)])
    write_fr_spec(tmp_path, human_eval(3), ["plain"], 1)
    assert [row["question_id"] for row in rows_of(tmp_path / "fr-spec/plain.jsonl")] == ["HumanEval/1"]
    samples = rows_of(tmp_path / "fr-spec/plain_correctness.jsonl")
    assert [sample["task_id"] for sample in samples] == ["HumanEval/0", "HumanEval/1", "HumanEval/2"]
    assert [sample["completion"] for sample in samples] == [
        "",
        "a = 1\n    b = 2\n  c = 3\n  d\n\n    \nreturn  e",
        "",
    ]


def test_a_missing_answer_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        write_fr_spec(tmp_path, human_eval(1), ["plain"], 1)


def test_the_command_knows_every_dialect() -> None:
    (named, _) = get_args(OutcomeOptions.model_fields["dialect"].annotation)
    assert get_args(named) == tuple(DIALECTS)
