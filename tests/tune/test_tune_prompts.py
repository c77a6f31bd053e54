"""Two halves that share no question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tune.support import make_place
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.tune.search.session import read_halves


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("prompts"), questions=11)


@pytest.fixture(scope="module")
def tokenizer(place: Path) -> TextTokenizer:
    return load_tokenizer(place / "t")


def test_every_question_is_in_one_half(place: Path, tokenizer: TextTokenizer) -> None:
    halves = read_halves(str(place / "q.jsonl"), tokenizer, form="raw", limit=None, room=200, new_tokens=9)
    assert len(halves.tuning.prompts) == 6
    assert len(halves.checking.questions) == 5
    tuning = {tuple(prompt) for prompt in halves.tuning.prompts}
    checking = {tuple(tokenizer.encode(one.turns[0])) for one in halves.checking.questions}
    assert len(tuning) == 6
    assert not tuning & checking
    assert all(len(one.turns) == 1 for one in halves.checking.questions)
    assert halves.checking.max_new_tokens == 9
    assert halves.checking.of == 11
    assert halves.left_out == 0


def test_what_does_not_fit_is_left_out(place: Path, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    rows = [{"question_id": n, "category": "qa", "turns": ["x" * (10 if n % 3 else 99)]} for n in range(9)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    halves = read_halves(str(tmp_path / "q.jsonl"), tokenizer, form="raw", limit=None, room=50, new_tokens=9)
    assert halves.left_out == 3
    assert len(halves.tuning.prompts) == len(halves.checking.questions) == 3
    with pytest.raises(UsageError, match="too few questions"):
        read_halves(str(tmp_path / "q.jsonl"), tokenizer, form="raw", limit=None, room=5, new_tokens=9)
