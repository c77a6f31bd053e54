"""Logits of one list of rows: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, assert_logits_close, moved, parity, steady
from vocabforge.ops.union_logits import union_logits

VOCAB = 97


def inputs(n: int, d: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and rows with repetitions and numbers that are none."""
    stream = torch.Generator().manual_seed(n * 1000 + d + columns)
    hidden, weight = (torch.randn(size, d, generator=stream).to(dtype) for size in (n, VOCAB))
    return hidden, weight, torch.randint(-2, VOCAB + 2, (columns,), generator=stream)


def agree(
    n: int,
    d: int,
    columns: int,
    used: int | None,
    dtype: torch.dtype,
    ids_dtype: torch.dtype,
    backend: str,
    device: str,
) -> None:
    hidden, weight, rows = inputs(n, d, columns, dtype)
    count = None if used is None else torch.tensor([used], dtype=torch.int32)
    given, options = moved((hidden, weight, rows.to(ids_dtype)), device), {"count": moved(count, device)}
    (got,) = steady(lambda: union_logits(*given, **options, backend=backend))
    expected = union_logits(hidden.float(), weight.float(), rows, count=count, backend="reference")
    assert_logits_close(got.cpu(), expected)


def test_logits_of_a_known_list() -> None:
    weight = torch.arange(24.0).reshape(3, 8)
    hidden = torch.stack((torch.ones(8), torch.eye(8)[2]))
    logits = union_logits(
        hidden, weight, torch.tensor([2, -1, 0, 0]), count=torch.tensor([3], dtype=torch.int32)
    )
    infinity = float("inf")
    assert logits.tolist() == [[156.0, -infinity, 28.0, -infinity], [18.0, -infinity, 2.0, -infinity]]


@pytest.mark.parametrize("multiprocessors", ["1", "3", "100"])
def test_emulated_tiles_of_every_height(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, multiprocessors: str
) -> None:
    # Few multiprocessors: tall tiles, several a block. Many: low ones, one a block. 2,900 numbers of 16 hidden rows,
    # and 1,540 of 32, are more than stays in shared memory beside the ring: they come again with each tile.
    emulated("union_logits")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", multiprocessors)
    for n, d, columns in ((12, 2904, 90), (24, 1544, 70), (3, 264, 300), (24, 136, 300)):
        hidden, weight, rows = inputs(n, d, columns, torch.bfloat16)
        got = union_logits(hidden, weight, rows, backend="emulated")
        assert_logits_close(got, union_logits(hidden, weight, rows, backend="reference"))


def test_a_row_has_the_same_bits_wherever_it_stands(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated("union_logits")
    hidden, weight, rows = inputs(6, 264, 90, torch.bfloat16)
    first = union_logits(hidden, weight, rows, backend="emulated")
    order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
    monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", "9")
    assert torch.equal(union_logits(hidden, weight, rows[order], backend="emulated"), first[:, order])


SIZES = [
    (1, 8, 1),
    (5, 264, 37),
    (8, 40, 129),
    (9, 1032, 20),
    (16, 72, 200),
    (17, 520, 70),
    (40, 264, 150),
    (64, 8, 33),
]
LARGE = product([1, 10, 20, 60], [8, 1032, 4096], [1, 500, 6000])
INT = torch.int64
TestParity = parity(
    "union_logits",
    agree,
    emulated=[
        (*size, used, dtype, INT if used is None else torch.int32)
        for size in SIZES
        for dtype in HALVES
        for used in (None, size[2] * 2 // 3, [0, size[2] + 5][size[0] % 2])
    ],
    cpu=[
        (n, 40, c, used, dtype, INT)
        for n, c in ((1, 5), (11, 60))
        for used in (None, c // 2)
        for dtype in FLOATS
    ],
    cuda=[(*size, used, dtype, INT) for size in LARGE for used in (None, size[2] // 2) for dtype in HALVES],
)
