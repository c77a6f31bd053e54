"""The protocol: conversations, order, warm-up, clock, seeds, and questions that fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
    ReservingGenerator,
    continuation,
    make_tokenizer,
    plain_and_tree,
    run_fakes,
)
from vocabforge.core.errors import DataError, UsageError, VocabForgeError
from vocabforge.core.journal import read_jsonl_log
from vocabforge.decode.request import SamplingParams
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.results.settings import EvaluationRun, RunSettings
from vocabforge.evaluate.run import request as asking
from vocabforge.evaluate.run import side_by_side
from vocabforge.evaluate.run.request import Asking, TurnFailed, turn_seed, until_stop

SAMPLED = SamplingParams(0.8)


def words(*numbers: int) -> list[int]:
    return [FIRST_WORD + number for number in numbers]


def ids_of(folder: Path, file: str) -> dict[int, list[list[int]]]:
    rows = read_jsonl_log(folder / "work" / "details" / file)
    return {row["question_id"]: row["choices"][0]["token_ids"] for row in rows}


def recorded(log: list, *names: str, kind: type[FakeGenerator] = FakeGenerator) -> list[FakeMethod]:
    """Methods that write (name, length of the prompt) into a log."""
    return [
        FakeMethod(name, kind(before=lambda prompt, name=name: log.append((name, len(prompt)))))
        for name in names
    ]


def test_chat_turns_see_the_models_own_earlier_answer(tmp_path: Path) -> None:
    methods = [*plain_and_tree(), FakeMethod("other", FakeGenerator(corrupt=2))]
    run_fakes(tmp_path, methods, rows=[(1, "writing", ("w4 w5", "w6"))])
    first = [BOS, USER, *words(4, 5), ASSISTANT]
    answer = continuation(first, 7)
    for method in methods:
        if method.name == "other":  # its own answer, not the baseline's
            answer[2] = FIRST_WORD + (answer[2] - FIRST_WORD + 1) % 40
        second = [BOS, USER, *words(4, 5), ASSISTANT, *answer, EOS, USER, *words(6), ASSISTANT]
        assert method.generator.prompts == [first, second]
    (row,) = read_jsonl_log(tmp_path / "work" / "answers" / "plain.jsonl")
    assert row["choices"][0]["turns"][0] == " ".join(
        f"w{token - FIRST_WORD}" for token in continuation(first, 7)
    )


def test_warm_up_then_question_by_question_in_a_turning_order(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    rows = [(2, "qa", ("w1",)), (1, "qa", ("w1 w2",))]
    run_fakes(tmp_path, recorded(log, "a", "b", "c"), rows=rows, warmup=3, repeats=2)
    assert log[:9] == [*[("a", 4)] * 3, *[("b", 4)] * 3, *[("c", 4)] * 3]
    orders = ["bca", "cab", "cab", "abc"]  # of question 1 in runs 1 and 2, of question 2 in both
    assert log[9:] == [(name, length) for order, length in zip(orders, (4, 4, 5, 5)) for name in order]


def test_each_run_has_its_files_and_its_seed_the_same_for_every_method(tmp_path: Path) -> None:
    methods = plain_and_tree()
    run_fakes(tmp_path, methods, sampling=SAMPLED, seeds=(7, 8), repeats=2)
    runs = [ids_of(tmp_path, f"run_{number}/tree.jsonl") for number in (1, 2, 3, 4)]
    # Runs: seeds 7 and 8, then both again. A repeat gives the same tokens, another seed gives others.
    assert runs[0] == runs[2]
    assert runs[1] == runs[3]
    assert all(runs[0][number] != runs[1][number] for number in runs[0])
    assert runs[0] == ids_of(tmp_path, "run_1/plain.jsonl")
    assert sorted(methods[0].generator.seeds) == sorted(methods[1].generator.seeds)
    expected = {
        turn_seed(seed, number, turn)
        for seed in (7, 8)
        for number, _, turns in ROWS
        for turn, _ in enumerate(turns)
    }
    assert set(methods[0].generator.seeds) == expected
    assert not (tmp_path / "work" / "answers" / "tree.jsonl").exists()


def test_tokens_after_the_stop_token_do_not_count(tmp_path: Path) -> None:
    run_fakes(tmp_path, plain_and_tree(tail=(FIRST_WORD, FIRST_WORD)))
    assert ids_of(tmp_path, "plain.jsonl") == ids_of(tmp_path, "tree.jsonl")
    assert until_stop([5, 2, 2, 7], {2}) == (5, 2)
    assert until_stop([5, 7], {2}) == (5, 7)


def test_the_clock_covers_the_generator_alone_with_the_device_waited_for(tmp_path: Path, monkeypatch) -> None:
    log: list[str] = []
    ticks = iter(range(100))

    def clock() -> float:
        log.append("clock")
        return float(next(ticks))

    class Noting(ReservingGenerator):
        def reserve(self, positions: int) -> None:
            log.append("reserve")
            super().reserve(positions)

    monkeypatch.setattr(asking.time, "perf_counter", clock)
    generator = Noting(before=lambda _: log.append("generate"))
    run_fakes(
        tmp_path,
        [FakeMethod("plain", generator)],
        rows=[(1, "writing", ("w4 w5", "w6"))],
        synchronise=lambda: log.append("wait"),
    )
    assert log == ["reserve", *["reserve", "wait", "clock", "generate", "wait", "clock"] * 2]
    # First the longest conversation: two prompts of 5 and 10 tokens with its answers of up to 32.
    first, second = map(len, generator.prompts)
    whole, *turns = generator.reserved
    assert turns == [first + 32, second + 32]
    assert max(turns) <= whole <= second + 2 * 32
    (row,) = read_jsonl_log(tmp_path / "work" / "answers" / "plain.jsonl")
    assert row["choices"][0]["wall_time"] == [1.0, 1.0]


def test_a_turn_in_which_passes_were_captured_is_asked_again(tmp_path: Path, monkeypatch) -> None:
    class Capturing(FakeGenerator):
        recordings = 0

        def generate(self, prompt_ids, **options):
            self.recordings += len(self.prompts) < 2  # in its first two calls
            ticks[0] += 1.0 if len(self.prompts) >= 2 else 50.0
            return super().generate(prompt_ids, **options)

    ticks = [0.0]
    monkeypatch.setattr(asking.time, "perf_counter", lambda: ticks[0])
    generator = Capturing()
    run_fakes(tmp_path, [FakeMethod("plain", generator)], rows=[(1, "writing", ("w4 w5", "w6"))])
    first, *again, second = generator.prompts
    assert again == [first, first]
    assert second != first
    (row,) = read_jsonl_log(tmp_path / "work" / "answers" / "plain.jsonl")
    assert row["choices"][0]["wall_time"] == [1.0, 1.0]


def test_no_room_for_the_longest_conversation_is_no_end(tmp_path: Path, capsys) -> None:
    rows = [(1, "writing", ("w4 w5", "w6")), (2, "qa", ("w1",))]
    outcome = run_fakes(tmp_path, [FakeMethod("plain", ReservingGenerator(room=40))], rows=rows)
    assert [(f.question_id, f.turn, f.kind) for f in outcome.failures] == [(1, 1, "RuntimeError")]
    assert "No room for the longest conversation" in capsys.readouterr().err


def test_a_prompt_that_does_not_fit_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    # Only the second turn of question 5 is longer than 16 tokens.
    methods = [*plain_and_tree(too_long=16), FakeMethod("last", FakeGenerator())]
    outcome = run_fakes(tmp_path, methods, repeats=2)
    (failure,) = outcome.failures
    assert (failure.question_id, failure.category, failure.method) == (5, "math", "tree")
    assert (failure.run, failure.turn, failure.kind) == (1, 1, "DataError")
    assert "does not fit" in failure.reason
    for file in ("run_1/plain.jsonl", "run_2/tree.jsonl", "run_1/last.jsonl"):
        answers = read_jsonl_log(tmp_path / "work" / "answers" / file)
        assert [row["question_id"] for row in answers] == [3, 4, 9]
    # The third question begins with the first method; the last one is not asked in vain: 2 x 4 turns alone.
    assert len(methods[2].generator.prompts) == 2 * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_ends_the_process_is_no_failure(tmp_path: Path, error: type[BaseException], capsys) -> None:
    def fail(prompt: list[int]) -> None:
        if prompt[2:3] == words(13):
            raise error

    with pytest.raises(error):
        run_fakes(tmp_path, plain_and_tree(before=fail))
    assert f"are in {tmp_path / 'out.partial'}: run the same command again" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
    outcome = run_fakes(tmp_path, plain_and_tree())
    assert (outcome.failures, outcome.resumed) == ([], 1)


def test_a_device_that_is_gone_stops_the_run_at_once(tmp_path: Path) -> None:
    gone: list[bool] = []

    def fail(prompt: list[int]) -> None:
        if prompt[2:3] == words(13):
            gone.append(True)
            raise RuntimeError("illegal memory access")

    def wait() -> None:
        if gone:
            raise RuntimeError("illegal memory access")

    with pytest.raises(VocabForgeError, match="does not answer any more since question 4 \\(tree\\)"):
        run_fakes(tmp_path, plain_and_tree(before=fail), synchronise=wait, rows=ROWS[::-1])
    outcome = run_fakes(tmp_path, plain_and_tree(), rows=ROWS[::-1])
    assert [failure.question_id for failure in outcome.failures] == [4]
    assert sorted(ids_of(tmp_path, "plain.jsonl")) == [3, 5, 9]


def test_nothing_answered_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not one question"):
        run_fakes(tmp_path, plain_and_tree(too_long=1), warmup=1)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer"]


def test_a_failed_turn_keeps_nothing_of_its_error_alive(tmp_path: Path) -> None:
    """An error holds its frames, and these the tensors of a device that has no memory left."""
    ask = Asking(make_tokenizer(tmp_path), RunSettings(8), lambda: None).ask
    method = FakeMethod("plain", FakeGenerator(too_long=1))
    failed = ask(Question(1, "qa", ("w1",)), method, EvaluationRun(1, 0))
    assert isinstance(failed, TurnFailed)
    assert "does not fit" in failed.reason
    assert [type(part) for part in failed] == [int, str, str]


def test_seeds_and_repeats_that_mean_nothing_are_refused() -> None:
    for wrong in ({"seeds": (1, 1)}, {"seeds": (1, 2)}):
        with pytest.raises(UsageError):
            RunSettings(8, **wrong)
    settings = RunSettings(8, SAMPLED, seeds=(4, 5), repeats=2)
    assert [(run.number, run.seed) for run in settings.runs] == [(1, 4), (2, 5), (3, 4), (4, 5)]


def test_seconds_in_which_passes_were_captured_do_not_count_in_a_load(tmp_path: Path, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(side_by_side.time, "perf_counter", lambda: clock[0])

    class Capturing:
        context, recording_s = 256, 0.0
        target = SimpleNamespace(config=SimpleNamespace(vocab_size=99))

        def stream_batch(self, requests, results):
            for number, result in enumerate(results):
                clock[0] += 5.0
                self.recording_s += 4.0 * (number == 0)
                result.token_ids, result.done = [9, 9], True
                yield number, [9, 9]

    load = side_by_side.Load(2)
    settings = RunSettings(8, prompt_format="raw")
    questions = [Question(number, "qa", ("w1 w2",)) for number in (1, 2)]
    given = Capturing(), Asking(make_tokenizer(tmp_path), settings, lambda: None), settings.runs[0], load
    assert len(list(side_by_side.answer_together(questions, *given))) == 2
    assert (load.new_tokens, load.seconds) == (4, 6.0)
