"""Answers that survive: cut lines, damaged lines, two runs at once."""

from __future__ import annotations

import json

import pytest

from vocabforge.core.errors import UsageError
from vocabforge.corpus.regenerate.log import AnswerLog
from vocabforge.corpus.regenerate.rows import ChatCompletion

SETTINGS = {"generation": {"model": "tiny"}, "inputs": {}}


def key(number: int) -> str:
    return f"{number:064x}"


def answer(number: int) -> ChatCompletion:
    message = {"role": "assistant", "content": f"größe {number} \n\u2028 🦊 \ud800"}
    return ChatCompletion(message, "stop", number, None, number, (1, number) if number % 2 else None)


def filled(folder, count: int = 5) -> bytes:
    with AnswerLog(folder, SETTINGS) as log:
        for number in range(count):
            log.add(key(number), answer(number))
            assert log.get(key(number)) == answer(number)
        assert log.get(key(99)) is None
    return (folder / "answers.jsonl").read_bytes()


def test_answers_come_back(tmp_path):
    filled(tmp_path)
    with AnswerLog(tmp_path, SETTINGS) as log:
        assert len(log) == 5
        assert [log.get(key(n)) for n in range(5)] == [answer(n) for n in range(5)]
        log.add(key(1), answer(4))  # the first one stays
        assert log.get(key(1)) == answer(1)
        log.add(key(7), answer(7))
    with AnswerLog(tmp_path, SETTINGS) as log:
        assert log.get(key(7)) == answer(7)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "a", "tool_calls": [{"id": "x", "function": None}]},
        {
            "role": "assistant",
            "content": "a",
            "tool_calls": [{"function": {"name": "f", "arguments": "[" * 10**5}}],
        },
        {"role": "assistant", "content": "a", "tool_calls": 3},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ["a"]},
    ],
)
def test_a_line_that_is_no_answer_is_damaged(tmp_path, capsys, message):
    filled(tmp_path, 1)
    row = {"key": key(1), "message": message, "finish_reason": "stop", "seed": 1}
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
        good = {"key": key(2), "message": {"role": "assistant", "content": "a"}, "completion_tokens": -9}
        file.write(json.dumps({**row, **good}) + "\n")
    with AnswerLog(tmp_path, SETTINGS) as log:
        assert (len(log), log.get(key(1))) == (2, None)
        assert log.get(key(2)).completion_tokens is None
    assert "1 damaged lines" in capsys.readouterr().err


def test_two_runs_and_other_settings_are_refused(tmp_path):
    filled(tmp_path)
    with AnswerLog(tmp_path, SETTINGS), pytest.raises(UsageError, match="another process is working"):
        AnswerLog(tmp_path, SETTINGS)
    with pytest.raises(UsageError, match=r'generation\.model: "tiny", now "big"'):
        AnswerLog(tmp_path, {**SETTINGS, "generation": {"model": "big"}})
    with AnswerLog(tmp_path, SETTINGS) as log:  # a refusal changes nothing, and lets go of the lock
        assert len(log) == 5


def test_fresh_discards_answers_and_nothing_else(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something else"):
        AnswerLog(other, SETTINGS, fresh=True)
    assert (other / "notes.txt").read_text() == "mine"
    filled(tmp_path / "run")
    with AnswerLog(tmp_path / "run", {"another": 1}, fresh=True) as log:
        assert len(log) == 0
    assert not (tmp_path / "run").exists(), "a journal without rows leaves nothing behind"
