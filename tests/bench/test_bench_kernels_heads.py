"""The heads of the table against their plain fp32 law, and their floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from vocabforge.bench.kernels.cases import heads
from vocabforge.bench.kernels.cases.types import SMALL, OpCase
from vocabforge.bench.kernels.ops import check_case

CPU = torch.device("cpu")
ALIKE = {case.name: case for case in heads.cases(SMALL)}
ONE_ROW = {case.name: case for case in heads.cases(replace(SMALL, rows=1))}


def named(word: str, cases: dict[str, OpCase] = ALIKE) -> OpCase:
    return next(case for name, case in cases.items() if name.startswith(word))


def judged(case: OpCase) -> str | None:
    found = check_case(case, CPU, torch.bfloat16, "reference", 3)
    return found["problem"] or found["graph"]


@pytest.mark.parametrize("name", ALIKE)
def test_every_head_answers_its_law(name: str) -> None:
    assert judged(ALIKE[name]) is None


@pytest.mark.parametrize("word", ["full", "static", "ranker d/8, k = 16", "router", "context", "hybrid"])
def test_one_row(word: str) -> None:
    assert judged(named(word, ONE_ROW)) is None


@pytest.mark.parametrize("kind", ["router", "hybrid"])
def test_rows_of_two_requests_that_are_unlike(kind: str) -> None:
    """Rows of a request open clusters for each other; nothing is shared between requests."""
    setting = next(one for one in heads.settings(SMALL) if one.kind == kind)
    shape = replace(SMALL, rows=20)
    case = heads.case_of(shape, replace(setting, alike=False))
    assert heads.requests_of(shape.rows) == 2
    assert judged(case) is None


@pytest.mark.parametrize("word", ["full", "ranker d/8, k = 16, rows unlike", "router", "context", "hybrid"])
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


class TestFloors:
    """Bytes by hand: d = 64, V = 1,003, bf16, five rows of 128 bytes."""

    def bytes_of(self, word: str) -> float:
        case = named(word)
        return case.bytes_of(case.make(CPU, torch.bfloat16, 0)) - 5 * 128

    def test_full_and_static(self) -> None:
        assert self.bytes_of("full") == 1003 * 128
        assert self.bytes_of("static") == 256 * 128

    def test_low_rank_and_context(self) -> None:
        assert self.bytes_of("low rank") == 8 * (1003 + 64) * 2
        assert 20 * 128 < self.bytes_of("context") <= 40 * 128

    def test_fp8_halves_the_scorer(self) -> None:
        plain = self.bytes_of("ranker d/4, k = 64, rows alike")
        small = self.bytes_of("ranker d/4 in fp8")
        rows = (small - 1003 * (16 + 4) - 16 * 64 * 2) / 128
        assert rows == int(rows)
        assert 64 <= rows < 100
        assert plain - small == pytest.approx(1003 * (16 - 4), abs=40 * 128)

    def test_router(self) -> None:
        width, clusters = 16, 12
        mlp = 2 * (width * 128 + width + clusters * width + clusters)
        rows = (self.bytes_of("router") - mlp) / 128
        assert rows == int(rows)
        assert 2 * (1003 // 12) <= rows <= 5 * (1003 // 12 + 1)
