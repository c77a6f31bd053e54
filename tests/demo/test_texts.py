"""The sample texts: deterministic, in the promised formats, and with nothing held out in the training set."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from vocabforge.corpus.chat.conversation import read_conversation
from vocabforge.evaluate.benchmarks.sample.families import (
    FAMILIES,
    arithmetic,
)
from vocabforge.evaluate.benchmarks.sample.writer import HELDOUT, QUESTIONS, TRAIN, SampleSizes, write_sample

SPEC_BENCH_CATEGORIES = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
    "translation", "summarization", "qa", "math_reasoning", "rag",
}  # fmt: skip
SIZES = SampleSizes(train=900, heldout=120, questions_per_category=4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    write_sample(folder, 0, SIZES)
    return folder


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_same_seed_same_bytes_other_seed_other_bytes(sample: Path, tmp_path: Path) -> None:
    state = random.getstate()
    again = write_sample(tmp_path / "again", 0, SIZES)
    other = write_sample(tmp_path / "other", 1, SIZES)
    for name in (TRAIN, HELDOUT, QUESTIONS):
        assert again[name].read_bytes() == (sample / name).read_bytes()
        assert other[name].read_bytes() != (sample / name).read_bytes()
    assert random.getstate() == state, "the generator must not touch the global random state"


def test_conversations_are_openai_messages(sample: Path) -> None:
    assert len(rows(sample / TRAIN)) == SIZES.train
    assert len(rows(sample / HELDOUT)) == SIZES.heldout
    for row in rows(sample / TRAIN) + rows(sample / HELDOUT):
        assert set(row) == {"messages"}
        messages = read_conversation(row).messages
        assert messages is not None
        assert [message["role"] for message in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(message["content"].strip() == message["content"] != "" for message in messages)


def test_questions_are_spec_bench_rows(sample: Path) -> None:
    questions = rows(sample / QUESTIONS)
    assert [row["question_id"] for row in questions] == list(range(81, 81 + len(questions)))
    assert Counter(row["category"] for row in questions) == dict.fromkeys(FAMILIES, 4)
    assert set(FAMILIES) <= SPEC_BENCH_CATEGORIES
    for row in questions:
        assert list(row)[:3] == ["question_id", "category", "turns"]
        assert set(row) <= {"question_id", "category", "turns", "reference"}
        two = row["category"] in {"writing", "roleplay", "coding", "extraction"}
        assert len(row["turns"]) == (2 if two else 1)
        if row["category"] not in {"writing", "roleplay"}:
            assert len(row["reference"]) == len(row["turns"])
            assert all(row["reference"])


def test_nothing_held_out_is_in_the_training_set(sample: Path) -> None:
    trained = {row["messages"][0]["content"] for row in rows(sample / TRAIN)}
    heldout = [row["messages"][0]["content"] for row in rows(sample / HELDOUT)]
    asked = [row["turns"][0] for row in rows(sample / QUESTIONS)]
    assert len(set(heldout)) == len(heldout)
    assert len(set(asked)) == len(asked)
    assert not trained & set(heldout)
    assert not trained & set(asked)
    assert not set(heldout) & set(asked)


def test_arithmetic_is_right() -> None:
    rng = random.Random(5)
    for _ in range(300):
        exchange = arithmetic(rng).exchanges[0]
        for left, operator, right, result in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", exchange.answer):
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}[operator]
            assert value(int(left), int(right)) == int(result) >= 0
            assert operator != "/" or int(left) % int(right) == 0
        last = re.findall(r"= (\d+) ", exchange.answer)[-1]
        assert exchange.answer.endswith(f"#### {last}")
