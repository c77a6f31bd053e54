from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluate.eval_fakes import (
    ASSISTANT,
    BOS,
    EOS,
    FIRST_WORD,
    ROWS,
    USER,
    FakeGenerator,
    FakeMethod,
    continuation,
    make_benchmark,
    make_tokenizer,
)
from vocabforge.core.errors import DataError, UsageError
from vocabforge.evaluate.answers import read_answers, read_details
from vocabforge.evaluate.prompts import resolve_format
from vocabforge.evaluate.runner import RunSettings, run_methods, turn_seed, until_stop

IDS = {"plain": "p", "tree": "t"}


def words(*numbers: int) -> list[int]:
    return [FIRST_WORD + number for number in numbers]


def run(tmp_path: Path, methods: list[FakeMethod], *, rows=ROWS, chat: bool = True, **settings):
    tokenizer = make_tokenizer(tmp_path / "tokenizer", chat=chat)
    options = RunSettings(32, **{"warmup": 0, "prompt_format": resolve_format(tokenizer, "auto"), **settings})
    names = {method.name: IDS.get(method.name, method.name) for method in methods}
    questions = make_benchmark(rows).questions
    return run_methods(questions, methods, tokenizer, options, tmp_path / "work", model_ids=names)


def pair(**tree) -> list[FakeMethod]:
    return [FakeMethod("plain", FakeGenerator()), FakeMethod("tree", FakeGenerator((3, 1, 2), **tree))]


def test_chat_turns_see_the_models_own_earlier_answer(tmp_path: Path) -> None:
    methods = pair()
    run(tmp_path, methods, rows=[(1, "writing", ("w4 w5", "w6"))])
    first = [BOS, USER, *words(4, 5), ASSISTANT]
    answer = continuation(first, 7)
    second = [BOS, USER, *words(4, 5), ASSISTANT, *answer, EOS, USER, *words(6), ASSISTANT]
    for method in methods:
        assert method.generator.prompts == [first, second]
    (row,) = read_answers(tmp_path / "work" / "answers" / "plain.jsonl")
    assert row["choices"][0]["turns"][0] == " ".join(f"w{token - FIRST_WORD}" for token in answer)


def test_raw_turns_follow_each_other_as_token_ids(tmp_path: Path) -> None:
    methods = pair()
    run(tmp_path, methods, rows=[(1, "writing", ("w4 w5", "w6"))], chat=False)
    first = [BOS, *words(4, 5)]
    assert methods[0].generator.prompts == [first, [*first, *continuation(first, 7), *words(6)]]


def test_warm_up_then_question_by_question_through_all_methods(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Recording(FakeGenerator):
        def generate(self, prompt_ids, **options):
            calls.append((self.name, len(prompt_ids)))
            return super().generate(prompt_ids, **options)

    methods = []
    for name in ("plain", "tree"):
        generator = Recording()
        generator.name = name
        methods.append(FakeMethod(name, generator))
    run(tmp_path, methods, rows=[(2, "qa", ("w1",)), (1, "qa", ("w1 w2",))], warmup=3)
    assert calls == [
        *[("plain", 4)] * 3,
        *[("tree", 4)] * 3,
        *[("plain", 4), ("tree", 4), ("plain", 5), ("tree", 5)],
    ]


def test_rows_of_all_methods_sorted_by_id_with_counts_per_turn(tmp_path: Path) -> None:
    assert run(tmp_path, pair()) == []
    for name in ("plain", "tree"):
        answers = read_answers(tmp_path / "work" / "answers" / f"{name}.jsonl")
        details = read_details(tmp_path / "work" / "details" / f"{name}.jsonl")
        assert [row["question_id"] for row in answers] == [3, 4, 5, 9]
        assert [row["question_id"] for row in details] == [3, 4, 5, 9]
    choice = answers[0]["choices"][0]
    assert answers[0]["model_id"] == "t"
    assert choice["new_tokens"] == [8, 8]
    assert choice["accept_lengths"] == [3, 1, 2, 2, 3, 1, 2, 2]
    assert choice["decoding_steps"] == [4, 4]
    assert all(seconds > 0 for seconds in choice["wall_time"])
    assert not list((tmp_path / "work").rglob("*.partial"))


def test_tokens_after_the_stop_token_do_not_count(tmp_path: Path) -> None:
    run(tmp_path, pair(tail=(FIRST_WORD, FIRST_WORD)))
    plain = read_details(tmp_path / "work" / "details" / "plain.jsonl")
    tree = read_details(tmp_path / "work" / "details" / "tree.jsonl")
    assert [row["choices"][0]["token_ids"] for row in plain] == [
        row["choices"][0]["token_ids"] for row in tree
    ]
    assert until_stop([5, 2, 2, 7], {2}) == (5, 2)
    assert until_stop([5, 7], {2}) == (5, 7)


def test_a_prompt_that_does_not_fit_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    # Only the second turn of question 5 is longer than 16 tokens.
    failures = run(tmp_path, pair(too_long=16))
    assert [(f.question_id, f.category, f.method, f.turn) for f in failures] == [(5, "math", "tree", 1)]
    assert "does not fit" in failures[0].reason
    for name in ("plain", "tree"):
        answers = read_answers(tmp_path / "work" / "answers" / f"{name}.jsonl")
        assert [row["question_id"] for row in answers] == [3, 4, 9]


def test_nothing_answered_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not one question"):
        run(tmp_path, pair(too_long=1), warmup=1)
    assert not list((tmp_path / "work").rglob("*.jsonl"))


def test_seeds_differ_by_turn_and_question_and_not_by_method() -> None:
    seeds = {turn_seed(seed, number, turn) for seed in (0, 1) for number in range(81, 561) for turn in (0, 1)}
    assert len(seeds) == 2 * 480 * 2


def test_prompt_formats(tmp_path: Path) -> None:
    chat, base = make_tokenizer(tmp_path / "a"), make_tokenizer(tmp_path / "b", chat=False)
    assert [resolve_format(chat, name) for name in ("auto", "chat", "raw")] == ["chat", "chat", "raw"]
    assert resolve_format(base, "auto") == "raw"
    with pytest.raises(UsageError, match="no chat template"):
        resolve_format(base, "chat")
    with pytest.raises(UsageError, match="no prompt format"):
        resolve_format(base, "vicuna")
