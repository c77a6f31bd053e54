"""The draft head's answer: reference, CPU implementation and emulated kernel agree with a sort in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, moved, parity, steady
from vocabforge.ops.draft_topk import draft_topk

INF, NAN = float("inf"), float("nan")
Answer = tuple[Tensor, Tensor]


class Case(NamedTuple):
    """Arguments of one call."""

    logits: Tensor
    k: int
    ids: Tensor | None = None
    target_ids: Tensor | None = None

    def ask(self, backend: str) -> Answer:
        return draft_topk(self.logits, self.k, ids=self.ids, target_ids=self.target_ids, backend=backend)


def by_sorting(case: Case) -> list[list[tuple[float, int]]]:
    """The answer by Python's sort and exact sums."""
    answers = []
    for n, row in enumerate(case.logits.float().tolist()):
        ids = list(range(len(row)))
        if case.ids is not None:
            ids = (case.ids if case.ids.dim() == 1 else case.ids[n]).tolist()
        entries = []
        for value, one in zip(row, ids):
            known = case.target_ids is None or one < len(case.target_ids)
            if one >= 0 and known and value > -INF:
                entries.append((-value, one if case.target_ids is None else int(case.target_ids[one])))
        entries.sort()
        top = -entries[0][0] if entries else 0.0
        total = math.fsum(math.exp(-value - top) for value, _ in entries) if top < INF else INF
        found = [(min(0.0, -value - top - math.log(total)), one) for value, one in entries[: case.k]]
        if top == INF:
            found = [(-INF, one) for _, one in found]
        answers.append(found + [(-INF, 0)] * (case.k - len(found)))
    return answers


def random_case(
    seed: int, rows: int, columns: int, k: int, dtype: torch.dtype = torch.float32, kind: str = "plain"
) -> Case:
    """Logits of which many are equal, with -inf, NaN and an empty row; ids as ``kind`` says."""
    stream = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, columns, generator=stream) * 8).round() / 4
    odd = torch.rand(rows, columns, generator=stream)
    logits[odd < 0.05], logits[odd > 0.97] = -INF, NAN
    if rows > 2:
        logits[1] = -INF
        logits[2, columns // 3 :] = -INF
    size = columns + 17
    ids = torch.stack([torch.randperm(size, generator=stream)[:columns] for _ in range(rows)])
    ids[torch.rand(rows, columns, generator=stream) < 0.1] = -1
    target_ids = torch.randperm(3 * size, generator=stream)[: size - 5]  # some ids lie outside
    shared = ids[0].contiguous()
    choices: dict[str, tuple[Tensor | None, Tensor | None]] = {
        "plain": (None, None),
        "shared": (shared, None),
        "shared32": (shared.int(), target_ids),
        "own": (ids, target_ids),
        "own32": (ids.int(), None),
        "mapped": (None, target_ids),
        "short map": (None, target_ids[: columns // 2 + 1].contiguous()),
    }
    return Case(logits.to(dtype), k, *choices[kind])


def assert_right(case: Case, answer: Answer) -> None:
    logprobs, ids = answer
    expected = by_sorting(case)
    assert logprobs.dtype == torch.float32
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[one for _, one in row] for row in expected]
    torch.testing.assert_close(
        logprobs, torch.tensor([[value for value, _ in row] for row in expected]), rtol=1e-5, atol=2e-6
    )
    assert not logprobs.isnan().any()
    assert (logprobs <= 0).all()


KINDS = ("plain", "shared", "shared32", "own", "own32", "mapped", "short map")


@pytest.mark.parametrize("kind", KINDS)
def test_reference_sorts(kind: str) -> None:
    for seed, (rows, columns, k) in enumerate([(1, 1, 1), (5, 40, 7), (3, 40, 64), (4, 300, 10)]):
        case = random_case(seed, rows, columns, k, kind=kind)
        assert_right(case, case.ask("reference"))


def test_a_known_answer() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -INF, NAN, 3.0]])
    ids = torch.tensor([5, 4, 2, 1, 0, -1])
    logprobs, chosen = draft_topk(logits, 5, ids=ids, target_ids=torch.tensor([60, 50, 40, 30, 20, 10]))
    total = math.log(2 * math.exp(3) + math.exp(1))
    assert chosen.tolist() == [[20, 40, 10, 0, 0]]  # ties to the lower final id, whatever the column
    torch.testing.assert_close(
        logprobs, torch.tensor([[3 - total, 3 - total, 1 - total, -INF, -INF]]), rtol=1e-6, atol=1e-6
    )


def odd_cases() -> list[Case]:
    """Rows that a kernel could stumble over."""
    equal = torch.zeros(2, 2600)
    falling = torch.linspace(9, -9, 3000)[None]
    one = torch.full((1, 2500), -INF)
    one[0, 2222] = -3e38
    infinite = torch.randn(1, 2100, generator=torch.Generator().manual_seed(0))
    infinite[0, 2060], infinite[0, 7] = INF, INF
    zeros = torch.zeros(1, 50)
    zeros[0, ::3] = -0.0
    huge = torch.full((1, 2100), 3e38)
    return [
        Case(equal, 40),
        Case(equal, 64, ids=torch.arange(2600).flip(0)),
        Case(falling, 64),
        Case(falling.flip(1).contiguous(), 64),
        Case(one, 3),
        Case(torch.full((1, 2500), -INF), 5),
        Case(torch.full((1, 30), NAN), 2),
        Case(infinite, 4),
        Case(zeros, 20),
        Case(huge, 3),
        Case(torch.tensor([[200.0, -200.0, 200.0]]), 3, ids=torch.tensor([-1, -1, -1])),
    ]


@pytest.mark.parametrize("number", range(11))
def test_odd_rows(emulated: Callable[[str], None], native_cpu: None, number: int) -> None:
    emulated("draft_topk")
    case = odd_cases()[number]
    for backend in ("reference", "native", "emulated"):
        assert_right(case, case.ask(backend))


def agree(shape: tuple[int, int, int], kind: str, dtype: torch.dtype, backend: str, device: str) -> None:
    """With a sort on the CPU; with the reference on a GPU, where rows are long."""
    case = random_case(sum(shape), *shape, dtype, kind)
    given = Case(*moved(case, device))
    answer = steady(lambda: given.ask(backend))
    if device == "cpu":
        assert_right(case, answer)
        return
    for got, expected in zip(answer, case.ask("reference")):
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


# Columns around the kernel's slices of 1,024 and 2,048; an emulated device has 4 multiprocessors.
SHAPES = [(1, 1, 1), (1, 1023, 10), (2, 2048, 33), (1, 2049, 64), (5, 2050, 10), (3, 4700, 64), (1, 6000, 1)]
LARGE = [(1, 1, 1), (1, 151_936, 10), (10, 128_257, 64), (60, 32_768, 10), (64, 2048, 64), (3, 2049, 33)]
TestParity = parity(
    "draft_topk",
    agree,
    emulated=[(shape, kind, torch.float32) for shape, kind in zip(SHAPES, KINDS)],
    cpu=[((4, 90 * number, 20), kind, dtype) for number, kind in enumerate(KINDS, 1) for dtype in FLOATS],
    cuda=product(LARGE, KINDS, FLOATS),
)
