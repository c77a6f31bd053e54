"""The ranker's candidates: reference, CPU implementation and emulated kernels give one set, whatever ties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, moved, parity, steady
from vocabforge.ops.ranker_select import ranker_select

INF, NAN = float("inf"), float("nan")


class Case(NamedTuple):
    """Arguments of one call."""

    projected: Tensor
    vocab: Tensor
    k: int

    def ask(self, backend: str) -> Tensor:
        return ranker_select(self.projected, self.vocab, self.k, backend=backend)

    def scores(self) -> Tensor:
        return self.projected.double() @ self.vocab.double().T


def by_sorting(case: Case) -> list[list[int]]:
    """The set by Python's sort: NaN last, ties to the lower id."""
    answers = []
    for row in case.scores().tolist():
        order = sorted(range(len(row)), key=lambda one: (row[one] != row[one], -row[one], one))
        answers.append(sorted(order[: case.k]))
    return answers


def whole(seed: int, rows: int, size: int, rank: int, k: int, dtype: torch.dtype) -> Case:
    """Small integers: sums are exact in any order, and many scores are equal."""
    stream = torch.Generator().manual_seed(seed)
    projected, vocab = (torch.randint(-2, 3, (n, rank), generator=stream).to(dtype) for n in (rows, size))
    return Case(projected, vocab, k)


def noise(seed: int, rows: int, size: int, rank: int, k: int, dtype: torch.dtype) -> Case:
    """Gaussian numbers."""
    stream = torch.Generator().manual_seed(seed)
    projected, vocab = (torch.randn(n, rank, generator=stream) for n in (rows, size))
    return Case((projected * 0.1).to(dtype), vocab.to(dtype), k)


def assert_exact(case: Case, found: Tensor) -> None:
    assert found.dtype == torch.int32
    assert found.sort(-1).values.tolist() == by_sorting(case)


def assert_best(case: Case, found: Tensor) -> None:
    """Distinct ids, and none of a score below the border by more than fp32 sums differ in."""
    assert found.shape == (len(case.projected), case.k)
    assert all(len(set(row)) == case.k for row in found.tolist())
    scores = case.scores()
    border = scores.topk(case.k, dim=-1).values[:, -1:]
    size = (case.projected.double().abs() @ case.vocab.double().abs().T).amax(-1, keepdim=True)
    assert (scores.gather(-1, found.long()) >= border - 1e-6 * size).all()


def test_reference_sorts() -> None:
    for seed, (rows, size, k) in enumerate([(1, 1, 1), (3, 50, 20), (5, 300, 300), (2, 300, 7)]):
        case = whole(seed, rows, size, 8, k, torch.float32)
        assert_exact(case, case.ask("reference"))


def test_a_known_set() -> None:
    scores = torch.tensor([3.0, NAN, 5.0, 3.0, -INF, 3.0, -0.0, 0.0])
    vocab = torch.zeros(8, 8)
    vocab[:, 0] = scores
    projected = torch.zeros(1, 8)
    projected[0, 0] = 1.0
    sets = [[2], [0, 2], [0, 2, 3], [0, 2, 3, 5], [0, 2, 3, 5, 6], [0, 2, 3, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7]]
    for k, expected in enumerate(sets, 1):
        assert ranker_select(projected, vocab, k)[0].tolist() == expected


def columns(*rows: list[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """Projected rows and a vocabulary whose scores are the given ones, exactly."""
    for scores in rows:
        vocab, projected = torch.zeros(len(scores), 8), torch.zeros(1, 8)
        vocab[:, 0], projected[0, 0] = torch.tensor(scores), 1.0
        yield projected.bfloat16(), vocab.bfloat16()


def odd_cases() -> list[Case]:
    """Scores that a selection by bins could stumble over."""
    tail = torch.randn(700, generator=torch.Generator().manual_seed(1)).tolist()
    rows: list[list[float]] = [
        [1.0] * 5000,
        [NAN] * 40 + [1.0, NAN, -INF, -INF, 0.0] + [NAN] * 40,
        [INF, -INF, INF, 3e38, -3e38, 0.0, -0.0, 1e-40, -1e-40, 5.0] * 30,
        [-33.0 - one for one in tail],  # a row far from 0: few bins hold all
        [one * 1e-9 for one in tail],
        [one * 1e9 for one in tail],
        [float(i % 3 - 1) for i in range(9000)],
        [-3e38] * 300,  # the bin with the most bits: narrowed five times, to the last of the id's
        [3e38] * 300,
    ]
    found = list(columns(*rows))
    wanted = [
        (1, 1000, 4999),
        (1, 3, 85),
        (20, 60, 100),
        (1, 50, 699),
        (5, 350, 690),
        (5, 350, 690),
        (2999, 3001, 8999),
        (1, 128, 299),
        (1, 128, 299),
    ]
    return [Case(*found[i], k) for i, ks in enumerate(wanted) for k in ks]


@pytest.mark.parametrize("number", range(27))
def test_odd_scores(emulated: Callable[[str], None], native_cpu: None, number: int) -> None:
    emulated("ranker_select")
    case = odd_cases()[number]
    for backend in ("reference", "native", "emulated"):
        assert_exact(case, case.ask(backend))


def test_more_ties_than_shared_memory_keeps(emulated: Callable[[str], None]) -> None:
    """Above 8,192 keys in the border's bin the last kernel reads the scores again."""
    emulated("ranker_select")
    stream = torch.Generator().manual_seed(0)
    few = torch.tensor([1.0, 1.0, 1.0, 1.015625, 0.5])  # 1 and 1 + 1/64 lie in one bin
    scores = few[torch.randint(5, (13_000,), generator=stream)]
    ((projected, vocab),) = columns(scores.tolist())
    # What follows the first row's scores are the second's: none of those may be taken for its own.
    case = Case(projected.repeat(2, 1), vocab, 5000)
    assert_exact(case, case.ask("emulated"))


def agree(shape: tuple[int, ...], dtype: torch.dtype, backend: str, device: str) -> None:
    """With a sort if scores are exact; on a GPU also of Gaussian numbers. The order is the same every time."""
    rows, size, rank, k = shape
    case = Case(*moved(whole(sum(shape), rows, size, min(rank, 128), k, dtype), device))
    (found,) = steady(lambda: case.ask(backend))
    if device == "cpu":
        assert_exact(case, found)
        return
    assert torch.equal(found.sort(-1).values, case.ask("reference"))
    case = Case(*moved(noise(sum(shape), rows, size, rank, k, dtype), device))
    (found,) = steady(lambda: case.ask(backend))
    assert_best(case, found)


# Around the chunks of 2,048 scores; the tile's heights are 16 to 128.
SHAPES = [
    (1, 1, 8, 1),
    (1, 2047, 8, 100),
    (2, 2048, 24, 2048),
    (9, 2049, 16, 1),
    (1, 4500, 40, 1000),
    (33, 300, 16, 77),
]
LARGE = [(1, 151_936, 512, 2048), (10, 128_256, 256, 4096), (60, 151_936, 256, 512), (64, 1 << 20, 64, 1000)]
TestParity = parity(
    "ranker_select",
    agree,
    emulated=product(SHAPES, HALVES),
    cpu=product([(4, 500, 16, 123)], FLOATS),
    cuda=product([*LARGE, (3, 50, 16, 50)], HALVES),
)


@pytest.mark.gpu
def test_odd_scores_on_a_gpu(native_cuda: None) -> None:
    for case in odd_cases():
        assert_exact(case, Case(*moved(case, "cuda")).ask("native").cpu())
