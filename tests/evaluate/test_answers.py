from __future__ import annotations

from pathlib import Path

import pytest

from vocabforge.core.errors import DataError, UsageError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.decode.request import Generation
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.results.answers import AnsweredTurn, answer_row, detail_row, read_method, write_rows
from vocabforge.evaluate.results.settings import file_names

QUESTION = Question(81, "writing", ("one", "two"))
LITERAL = (
    b'{"question_id": 81, "category": "writing", "answer_id": "vXvXvXvXvXvXvXvXvXvXvX", '
    b'"model_id": "tiny-plain", '
    b'"choices": [{"index": 0, "turns": ["caf\\u00e9 \\"x\\"", "b"], "decoding_steps": [2, 1], '
    b'"new_tokens": [3, 1], "wall_time": [0.5, 0.25], '
    b'"accept_lengths": [2, 1, 1]}], "tstamp": 1700000000.5}\n'
)
DETAIL_LITERAL = (
    b'{"question_id": 81, "category": "writing", "choices": [{"index": 0, "prompt_tokens": [5, 5], '
    b'"token_ids": [[7, 8, 2], [2]], "accept_lengths": [[2, 1], [1]], "prefill_s": [0.1, 0.1], '
    b'"decode_s": [0.2, 0.2], "timings": [{"prefill": 0.1}, {"prefill": 0.1}], "target_forwards": [4, 4], '
    b'"drafted": [6, 6], "drafted_by_depth": [[6], [6]], "accepted_by_depth": [[1], [1]], '
    b'"finish": ["stop", "stop"], "counts": [{}, {}]}]}\n'
)


def turn(text: str, tokens: tuple[int, ...], lengths: list[int], wall_time: float) -> AnsweredTurn:
    generation = Generation(
        token_ids=list(tokens),
        accept_lengths=lengths,
        prefill_s=0.1,
        decode_s=0.2,
        target_forwards=4,
        drafted=6,
        timings={"prefill": 0.1},
        finish="stop",
        accepted_by_depth=[1],
        drafted_by_depth=[6],
    )
    return AnsweredTurn(text, tokens, 5, wall_time, generation)


TURNS = [turn('café "x"', (7, 8, 2), [2, 1], 0.5), turn("b", (2,), [1], 0.25)]


def row_of(question: Question) -> dict:
    return answer_row(
        question, TURNS, model_id="tiny-plain", answer_id="vXvXvXvXvXvXvXvXvXvXvX", tstamp=1700000000.5
    )


def test_an_answer_row_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "answers" / "plain.jsonl"
    write_rows(path, [row_of(QUESTION), row_of(QUESTION)])
    assert path.read_bytes() == LITERAL + LITERAL
    assert read_jsonl_log(path) == [row_of(QUESTION)] * 2


def test_the_side_file_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    write_rows(path, [detail_row(QUESTION, TURNS)])
    assert path.read_bytes() == DETAIL_LITERAL
    assert read_jsonl_log(path) == [detail_row(QUESTION, TURNS)]


@pytest.mark.parametrize("line", ['{"question_id": 1', "[]", '{"wall_time": [NaN]}', "[" * 100_000])
def test_a_broken_answer_file_is_reported_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(LITERAL + line.encode() + b"\n")
    with pytest.raises(DataError) as caught:
        read_method(tmp_path, ["a.jsonl"], ["a.jsonl"])
    assert f"{tmp_path / 'a.jsonl'}:2" in caught.value.render()


def test_method_names_become_file_names() -> None:
    assert file_names(["plain", "eagle3 (32k/top)"]) == {
        "plain": "plain.jsonl",
        "eagle3 (32k/top)": "eagle3-32k-top.jsonl",
    }
    for clashing in (["plain", "plain"], ["a/b", "a:b"], ["A", "a"]):
        with pytest.raises(UsageError, match="same name"):
            file_names(clashing)
