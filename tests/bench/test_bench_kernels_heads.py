"""The heads of the table against their plain fp32 distribution, and their floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from bench.cases import heads
from bench.cases.types import SMALL, OpCase
from bench.ops import problem_of

CPU = torch.device("cpu")
ALIKE = {case.name: case for case in heads.cases(SMALL)}
ONE_ROW = {case.name: case for case in heads.cases(replace(SMALL, rows=1))}


def named(word: str, cases: dict[str, OpCase] = ALIKE) -> OpCase:
    return next(case for name, case in cases.items() if name.startswith(f"head {word}"))


def judged(case: OpCase) -> str | None:
    return problem_of(case, CPU, torch.bfloat16, "reference", 3)


@pytest.mark.parametrize("name", ALIKE)
def test_every_head_answers_its_distribution(name: str) -> None:
    assert judged(ALIKE[name]) is None


@pytest.mark.parametrize("word", ["full", "static", "ranker d/8, k = 16", "context"])
def test_one_row(word: str) -> None:
    assert judged(named(word, ONE_ROW)) is None


def test_rows_of_two_requests_that_are_unlike() -> None:
    """Each request has a vocabulary of its own."""
    setting = next(one for one in heads.settings(SMALL) if one.kind == "context")
    shape = replace(SMALL, rows=20)
    case = heads.case_of(shape, replace(setting, alike=False))
    assert heads.requests_of(shape.rows) == 2
    assert judged(case) is None


@pytest.mark.parametrize("word", ["full", "ranker d/8, k = 16, rows unlike", "context"])
def test_a_head_that_misses_its_best_token_is_found(word: str) -> None:
    case = named(word)

    def second_best(inputs: Any, backend: str) -> tuple[torch.Tensor, ...]:
        logprobs, ids = inputs["head"].topk(inputs["hidden"], SMALL.topk + 1, inputs["state"])
        return logprobs[:, 1:], ids[:, 1:]

    assert "of the best" in str(judged(replace(case, run=second_best)))


def test_wrong_ids_and_repeated_ids_are_found() -> None:
    case = named("static")

    def moved(inputs: Any, backend: str) -> tuple[torch.Tensor, ...]:
        logprobs, ids = inputs["head"].topk(inputs["hidden"], SMALL.topk, inputs["state"])
        return logprobs, (ids + 1) % SMALL.vocab

    def repeated(inputs: Any, backend: str) -> tuple[torch.Tensor, ...]:
        logprobs, ids = inputs["head"].topk(inputs["hidden"], SMALL.topk, inputs["state"])
        return logprobs, ids[:, :1].repeat(1, SMALL.topk)

    def outside(inputs: Any, backend: str) -> tuple[torch.Tensor, ...]:
        logprobs, ids = inputs["head"].topk(inputs["hidden"], SMALL.topk, inputs["state"])
        return logprobs, ids + SMALL.vocab

    assert "of the ids" in str(judged(replace(case, run=moved)))
    assert "twice" in str(judged(replace(case, run=repeated)))
    assert "outside" in str(judged(replace(case, run=outside)))


def test_floors_are_bytes_by_hand() -> None:
    """d = 64, V = 1,003, bf16, five rows of 128 bytes."""
    rest = 5 * 128

    def moved(word: str) -> float:
        return float(named(word).floor_bytes) - rest  # type: ignore[arg-type]

    assert moved("full") == 1003 * 128
    assert moved("static") == 256 * 128
    assert moved("context") == 40 * 128
    assert moved("ranker d/4, k = 64, rows alike") == 16 * (1003 + 64) * 2 + 64 * 128
    assert moved("ranker d/8, k = 16, rows unlike") == 8 * (1003 + 64) * 2 + 5 * 16 * 128
