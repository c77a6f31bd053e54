"""Logits of one list of rows: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ops.logits_support import assert_logits_close
from vocabforge.ops.union_logits import union_logits

VOCAB = 97
HALVES = [torch.bfloat16, torch.float16]


def inputs(n: int, d: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and rows with repetitions and numbers that are none."""
    stream = torch.Generator().manual_seed(n * 1000 + d + columns)
    hidden, weight = (torch.randn(size, d, generator=stream).to(dtype) for size in (n, VOCAB))
    return hidden, weight, torch.randint(-2, VOCAB + 2, (columns,), generator=stream)


def test_logits_of_a_known_list() -> None:
    weight = torch.arange(24.0).reshape(3, 8)
    hidden = torch.stack((torch.ones(8), torch.eye(8)[2]))
    logits = union_logits(
        hidden, weight, torch.tensor([2, -1, 0, 0]), count=torch.tensor([3], dtype=torch.int32)
    )
    infinity = float("inf")
    assert logits.tolist() == [[156.0, -infinity, 28.0, -infinity], [18.0, -infinity, 2.0, -infinity]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("n", "d", "columns"), [
    (1, 8, 1), (5, 264, 37), (8, 40, 129), (9, 1032, 20), (16, 72, 200), (17, 520, 70), (40, 264, 150), (64, 8, 33),
])  # fmt: skip
def test_emulated_kernel_equals_the_reference(
    emulated: Callable[[str], None], schedule: int, n: int, d: int, columns: int, dtype: torch.dtype
) -> None:
    emulated("union_logits")
    hidden, weight, rows = inputs(n, d, columns, dtype)
    rows = rows.int() if schedule == 2 else rows
    used = {1: None, 2: columns * 2 // 3, 3: [0, columns + 5][n % 2]}[schedule]
    count = None if used is None else torch.tensor([used], dtype=torch.int32)
    got = union_logits(hidden, weight, rows, count=count, backend="emulated")
    assert_logits_close(got, union_logits(hidden, weight, rows, count=count, backend="reference"))


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


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_cpu_implementation_equals_the_reference(native_cpu: None, dtype: torch.dtype) -> None:
    for n, columns in ((1, 5), (11, 60)):
        hidden, weight, rows = inputs(n, 40, columns, dtype)
        for count in (None, torch.tensor([columns // 2], dtype=torch.int32)):
            got = union_logits(hidden, weight, rows, count=count, backend="native")
            assert_logits_close(got, union_logits(hidden, weight, rows, count=count))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 10, 20, 60])
@pytest.mark.parametrize("d", [8, 1032, 4096])
def test_cuda_kernel_equals_the_reference(native_cuda: None, n: int, d: int, dtype: torch.dtype) -> None:
    for columns in (1, 500, 6000):
        hidden, weight, rows = (one.cuda() for one in inputs(n, d, columns, dtype))
        for count in (None, torch.tensor([columns // 2], dtype=torch.int32, device="cuda")):
            got = union_logits(hidden, weight, rows, count=count, backend="native")
            assert torch.equal(got, union_logits(hidden, weight, rows, count=count, backend="native"))
            expected = union_logits(hidden.cpu().float(), weight.cpu().float(), rows.cpu(),
                                    count=None if count is None else count.cpu())  # fmt: skip
            assert_logits_close(got.cpu(), expected)
