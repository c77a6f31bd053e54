from __future__ import annotations

import pytest

from vocabforge.evaluate.summary import (
    MethodRows,
    acceptance_by_depth,
    retokenised_counts,
    summarise,
    task_groups,
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


def test_figures_computed_by_hand() -> None:
    recounted = retokenised_counts(PLAIN.answers, count_with_bos)
    assert recounted == {1: 7, 2: 9}
    summary = summarise(METHOD, PLAIN, recounted, compare=False)
    overall = summary["overall"]
    assert overall["questions"] == 2
    assert overall["new_tokens"] == 22
    assert overall["mean_accepted_length"] == pytest.approx(22 / 7)
    assert overall["tokens_per_s"] == pytest.approx(9.0)
    assert overall["speedup"] == pytest.approx(9 / 4.5)
    assert overall["speedup_retokenised"] == pytest.approx(9 / 3.25)
    assert overall["target_forwards_per_token"] == pytest.approx(10 / 22)
    assert summary["categories"]["writing"]["speedup"] == pytest.approx(2.0)
    assert summary["categories"]["qa"]["speedup_retokenised"] == pytest.approx(8 / 3)
    assert summary["tasks"]["mt_bench"] == summary["categories"]["writing"]
    assert list(summary["tasks"]) == ["mt_bench", "qa"]
    assert summary["accept_length_histogram"] == {"2": 1, "3": 4, "4": 2}
    assert summary["time_s"] == {"prefill": 0.5, "verify": 1.0}
    assert summary["outputs"] is None


def test_the_baseline_against_itself() -> None:
    recounted = retokenised_counts(PLAIN.answers, count_with_bos)
    summary = summarise(PLAIN, PLAIN, recounted, compare=True)
    assert summary["overall"]["speedup"] == 1.0
    assert summary["overall"]["mean_accepted_length"] == 1.0
    assert summary["depths"] == []
    assert summary["outputs"]["identical"] == 2


def test_acceptance_by_depth() -> None:
    first, second = acceptance_by_depth(METHOD.details)
    assert (first["depth"], first["offered"], first["accepted"]) == (1, 12, 7)
    assert first["reached"] == pytest.approx(1.0)
    assert second["accepted"] == 6
    assert second["reached"] == pytest.approx(6 / 7)
    assert second["conditional"] == pytest.approx(6 / 7)


def test_an_answer_without_steps_or_tokens_divides_by_nothing() -> None:
    rows = MethodRows([answer(1, "qa", [""], [0], [0.5], [])], [detail(1, "qa", [1], [[]], [[]])])
    overall = summarise(rows, rows, {1: 0}, compare=False)["overall"]
    assert overall["mean_accepted_length"] is None
    assert overall["tokens_per_s"] == 0.0
    assert overall["speedup"] is None
    assert overall["target_forwards_per_token"] is None


def test_task_groups_gather_the_mt_bench_categories() -> None:
    groups = task_groups(["qa", "math", "qa", "writing", "rag"])
    assert groups == {"qa": ("qa",), "mt_bench": ("writing", "math"), "rag": ("rag",)}
