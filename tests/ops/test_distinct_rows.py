"""The distinct rows of a draft step's candidates: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ops.parity import assert_same, parity, steady
from vocabforge.ops.distinct_rows import SEGMENTS, distinct_rows

# N, k, size: one id; more ids than rows; several ids a thread; the largest head
SIZES = [(1, 1, 1), (3, 50, 40), (11, 200, 1000), (2, 3, 2**20)]


def some_ids(n: int, k: int, size: int, dtype: torch.dtype) -> Tensor:
    """Ids with repetitions, the first and the last row, and numbers that are no row."""
    stream = torch.Generator().manual_seed(n * k)
    ids = torch.randint(-2, size + 2, (n, k), generator=stream)
    ids[0, 0] = size - 1
    if n > 1:
        ids[1] = ids[0]
        ids[-1, -1] = 0
    return ids.to(dtype)


def check(ids: Tensor, size: int, found: tuple[Tensor, Tensor, Tensor]) -> None:
    """What the op promises, whatever the order of the rows."""
    rows, count, places = (one.cpu() for one in found)
    ids = ids.cpu().long()
    exists = (ids >= 0) & (ids < size)
    expected = ids[exists].unique()
    assert rows.shape == (min(ids.numel(), size),)
    assert rows.dtype == places.dtype == count.dtype == torch.int32
    assert count.tolist() == [len(expected)]
    assert torch.equal(rows[: len(expected)].sort().values.long(), expected)
    assert (rows[len(expected) :] == -1).all()
    assert (places[~exists] == -1).all()
    assert torch.equal(rows[places[exists].long()].long(), ids[exists])


def agree(n: int, k: int, size: int, dtype: torch.dtype, backend: str, device: str) -> None:
    ids = some_ids(n, k, size, dtype).to(device)
    found = steady(lambda: distinct_rows(ids, size, backend=backend))
    check(ids, size, found)
    assert_same(found, distinct_rows(ids, size, backend="reference"))


def test_rows_of_a_known_list() -> None:
    rows, count, places = distinct_rows(torch.tensor([[5, 2, 5], [-1, 7, 2]]), 6)
    assert rows.tolist() == [2, 5, -1, -1, -1, -1]
    assert count.tolist() == [2]
    assert places.tolist() == [[1, 0, 1], [-1, -1, 0]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_reference_keeps_the_promise(dtype: torch.dtype) -> None:
    for n, k, size in SIZES:
        ids = some_ids(n, k, size, dtype)
        check(ids, size, distinct_rows(ids, size))


def test_emulated_kernel_of_a_long_list(emulated: Callable[[str], None]) -> None:
    emulated("distinct_rows")
    ids = some_ids(64, 130, 5000, torch.int64)  # from 8,192 ids on, blocks have 1,024 threads
    check(ids, 5000, distinct_rows(ids, 5000, backend="emulated"))


def test_emulated_kernel_of_ids_that_crowd_in_one_segment(emulated: Callable[[str], None]) -> None:
    emulated("distinct_rows")
    ids = some_ids(43, 100, 1000, torch.int64) // SEGMENTS * SEGMENTS + 7  # more than a block remembers
    check(ids, 1000, distinct_rows(ids, 1000, backend="emulated"))


CASES = [(*sizes, dtype) for sizes in SIZES for dtype in (torch.int32, torch.int64)]
LARGE = [(10, 2048, 128_256, torch.int32), (60, 4096, 151_936, torch.int32)]
TestParity = parity("distinct_rows", agree, emulated=CASES, cpu=CASES, cuda=[*CASES, *LARGE])
