from __future__ import annotations

import pytest

from vocabforge.core.errors import DataError
from vocabforge.evaluate.results.answers import MethodRows
from vocabforge.evaluate.results.schema import GroupFigures, Summary
from vocabforge.evaluate.results.summary import (
    acceptance_by_depth,
    acceptance_by_position,
    retokenised_counts,
    summarise_runs,
)


def answer(
    number: int, category: str, texts: list[str], new: list[int], wall: list[float], lengths: list[int]
):
    choice = {
        "index": 0,
        "turns": texts,
        "decoding_steps": [1] * len(new),
        "new_tokens": new,
        "wall_time": wall,
        "accept_lengths": lengths,
    }
    return {"question_id": number, "category": category, "choices": [choice]}


def detail(
    number: int, category: str, forwards: list[int], lengths: list[list[int]], accepted: list[list[int]]
):
    choice = {
        "prompt_tokens": [7] * len(lengths),
        "token_ids": [[1]],
        "accept_lengths": lengths,
        "timings": [{"prefill": 0.25, "verify": 0.5}],
        "target_forwards": forwards,
        "drafted_by_depth": [[4] * len(turn) for turn in accepted],
        "accepted_by_depth": accepted,
        "finish": ["stop"],
    }
    return {"question_id": number, "category": category, "choices": [choice]}


# Baseline: 10 tokens in 2 s = 5/s, and 6 + 6 tokens in 1 + 2 s = 4/s; mean 4.5/s.
# Re-tokenised, minus one a turn: (8 - 1) / 2 s = 3.5/s, ((6 - 1) + (5 - 1)) / 3 s = 3/s; mean 3.25/s.
PLAIN = MethodRows(
    [
        answer(1, "writing", ["a b c d e f g"], [10], [2.0], [1] * 10),
        answer(2, "qa", ["a b c d e", "a b c d"], [6, 6], [1.0, 2.0], [1] * 12),
    ],
    [detail(1, "writing", [10], [[1] * 10], [[]]), detail(2, "qa", [6, 6], [[1] * 6] * 2, [[], []])],
)
# Method: 10 tokens in 1 s = 10/s, 12 tokens in 1.5 s = 8/s; mean 9/s. Steps 3, 3, 4 and 2, 4, 3, 3: 22/7.
METHOD = MethodRows(
    [
        answer(1, "writing", ["x"], [10], [1.0], [3, 3, 4]),
        answer(2, "qa", ["x", "y"], [6, 6], [0.5, 1.0], [2, 4, 3, 3]),
    ],
    [
        detail(1, "writing", [4], [[3, 3, 4]], [[3, 3]]),
        detail(2, "qa", [3, 3], [[2, 4], [3, 3]], [[2, 1], [2, 2]]),
    ],
)


def count_with_bos(text: str) -> int:
    return len(text.split()) + 1


def one_run(method: MethodRows, baseline: MethodRows) -> Summary:
    recounted = retokenised_counts(baseline.answers, count_with_bos)
    return summarise_runs([method], [baseline], [recounted])


def values(group: GroupFigures) -> dict[str, float | None]:
    return {name: figure["value"] for name, figure in group.model_dump().items() if isinstance(figure, dict)}


def test_figures_of_one_run_by_hand() -> None:
    assert retokenised_counts(PLAIN.answers, count_with_bos) == {1: 7, 2: 9}
    summary = one_run(METHOD, PLAIN)
    overall = summary.overall
    assert (overall.questions, overall.new_tokens, overall.wall_time_s) == (2, 22, 2.5)
    assert values(overall) == pytest.approx(
        {
            "accepted_length": 22 / 7,
            "tokens_per_s": 9.0,
            "speedup": 9 / 4.5,
            "speedup_retokenised": 9 / 3.25,
            "forwards_per_token": 10 / 22,
        }
    )
    qa = summary.categories["qa"]
    assert (qa.questions, qa.new_tokens, qa.wall_time_s) == (1, 12, 1.5)
    assert summary.categories["writing"].speedup.value == pytest.approx(2.0)
    assert summary.categories["qa"].speedup_retokenised.value == pytest.approx(8 / 3)
    assert summary.tasks["mt_bench"] == summary.categories["writing"]
    assert list(summary.tasks) == ["mt_bench", "qa"]
    assert summary.time_s == {"prefill": 0.5, "verify": 1.0, "other": 1.0}
    assert summary.outputs is None
    # Two questions: the interval runs from the one's figure to the other's.
    speed = overall.tokens_per_s
    assert (speed.low, speed.high, speed.sd) == (8.0, 10.0, None)
    assert (overall.speedup.low, overall.speedup.high) == (2.0, 2.0)
    assert summary.categories["qa"].tokens_per_s.low is None


def test_passes_a_token_are_pooled_over_runs() -> None:
    again = MethodRows(
        [
            answer(1, "writing", ["x"], [10], [2.0], [5, 5]),
            answer(2, "qa", ["x", "y"], [6, 4], [0.5, 0.5], [4] * 3),
        ],
        [
            detail(1, "writing", [3], [[5, 5]], [[2, 2]]),
            detail(2, "qa", [2, 2], [[4, 4], [4]], [[2, 1], [1, 1]]),
        ],
    )
    recounted = [retokenised_counts(PLAIN.answers, count_with_bos)] * 2
    overall = summarise_runs([METHOD, again], [PLAIN, PLAIN], recounted).overall
    assert overall.forwards_per_token.value == pytest.approx(17 / 42)  # not (10 / 22 + 7 / 20) / 2


def test_files_of_different_questions_are_refused() -> None:
    half = MethodRows(METHOD.answers[:1], METHOD.details)
    with pytest.raises(DataError, match="same questions") as caught:
        one_run(half, PLAIN)
    assert "1 rows in run 1, odd: [2]" in str(caught.value.got)
    twice = MethodRows([*METHOD.answers, METHOD.answers[0]], METHOD.details)
    with pytest.raises(DataError, match="same questions"):
        one_run(twice, PLAIN)
    details = MethodRows(METHOD.answers, METHOD.details[:1])
    with pytest.raises(DataError, match="same questions"):
        one_run(details, PLAIN)
    recounted = [retokenised_counts(PLAIN.answers, count_with_bos)] * 2
    with pytest.raises(DataError, match="same questions"):
        summarise_runs([METHOD, METHOD], [PLAIN, MethodRows(PLAIN.answers[1:], [])], recounted)


def test_acceptance_by_depth() -> None:
    first, second = acceptance_by_depth(METHOD.details)
    assert (first.depth, first.offered, first.accepted) == (1, 12, 7)
    assert first.reached == pytest.approx(1.0)
    assert second.accepted == 6
    assert second.reached == pytest.approx(6 / 7)


def test_an_answer_without_steps_or_tokens_divides_by_nothing() -> None:
    rows = MethodRows([answer(1, "qa", [""], [0], [0.5], [])], [detail(1, "qa", [1], [[]], [[]])])
    rows.answers[0]["choices"][0]["decoding_steps"] = [0]
    assert values(one_run(rows, rows).overall) == {
        "accepted_length": None,
        "tokens_per_s": 0.0,
        "speedup": None,
        "speedup_retokenised": None,
        "forwards_per_token": None,
    }


def test_an_answer_in_no_time_has_no_speed_and_the_others_keep_theirs() -> None:
    still = MethodRows(
        [METHOD.answers[0], answer(2, "qa", ["x"], [12], [0.0], [6, 6])],
        [METHOD.details[0], detail(2, "qa", [3, 3], [[6, 6]], [[2, 1], [2, 2]])],
    )
    summary = one_run(still, PLAIN)
    assert summary.overall.tokens_per_s.value == 10.0
    assert summary.overall.tokens_per_s.low is None  # one question with a speed
    assert summary.overall.speedup.value == pytest.approx(10 / 4.5)
    assert summary.categories["qa"].tokens_per_s.value is None
    assert summary.categories["qa"].accepted_length.value == 6.0
    recounted = [retokenised_counts(PLAIN.answers, count_with_bos)] * 2
    both = summarise_runs([still, METHOD], [PLAIN, PLAIN], recounted)
    assert both.overall.tokens_per_s.value == (10 + 9) / 2


def test_acceptance_by_length_of_the_text() -> None:
    """A verification counts where it begins, behind the prompt and what earlier ones committed."""
    choices = [
        {"prompt_tokens": [1020, 5000], "accept_lengths": [[3, 2, 4], [1, 1]]},
        {"prompt_tokens": [None], "accept_lengths": [[9]]},
        {"prompt_tokens": [10], "accept_lengths": [[]]},
    ]
    found = [
        (one.start, one.stop, one.verifications, one.accepted_length)
        for one in acceptance_by_position(choices)
    ]
    assert found == [(0, 1024, 2, 2.5), (1024, 2048, 1, 4.0), (4096, 8192, 2, 1.0)]
