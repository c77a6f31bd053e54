"""Logits of each row's own candidates: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, assert_logits_close, moved, parity, steady
from vocabforge.ops.indexed_logits import indexed_logits

VOCAB = 300


def inputs(n: int, d: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and candidates: some shared by rows, some twice in a row, some that are none."""
    stream = torch.Generator().manual_seed(n * 1000 + d + k)
    hidden, weight = (torch.randn(size, d, generator=stream).to(dtype) for size in (n, VOCAB))
    ids = torch.randint(-2, VOCAB + 2, (n, k), generator=stream)
    ids[n // 2 :, : k // 2] = ids[0, : k // 2].clone()
    return hidden, weight, ids


def agree(
    n: int, d: int, k: int, dtype: torch.dtype, ids_dtype: torch.dtype, backend: str, device: str
) -> None:
    hidden, weight, ids = inputs(n, d, k, dtype)
    given = moved((hidden, weight, ids.to(ids_dtype)), device)
    (got,) = steady(lambda: indexed_logits(*given, backend=backend))
    products = hidden.float() @ weight.float().T  # (N, V)
    expected = products.gather(1, ids.clamp(0, VOCAB - 1)).masked_fill((ids < 0) | (ids >= VOCAB), -torch.inf)
    assert_logits_close(got.cpu(), expected)
    if device == "cpu":
        assert_logits_close(indexed_logits(*given, backend="reference"), expected)


def test_logits_of_known_candidates() -> None:
    weight = torch.arange(24.0).reshape(3, 8)
    hidden = torch.stack((torch.ones(8), torch.eye(8)[2]))
    logits = indexed_logits(hidden, weight, torch.tensor([[2, 0, 2], [-1, 1, 3]]))
    infinity = float("inf")
    assert logits.tolist() == [[156.0, 28.0, 156.0], [-infinity, 10.0, -infinity]]


def test_no_candidates_at_all(emulated: Callable[[str], None]) -> None:
    emulated("indexed_logits")
    hidden, weight, ids = inputs(3, 16, 4, torch.bfloat16)
    for backend in ("reference", "emulated"):
        assert indexed_logits(hidden, weight, ids[:, :0], backend=backend).shape == (3, 0)
        assert (indexed_logits(hidden, weight, torch.full_like(ids, -1), backend=backend) == -torch.inf).all()


# The last: nearly all rows of the head, each wanted by many; several tiles a block, several ids a thread.
SIZES = [(1, 8, 1), (1, 264, 70), (2, 1032, 5), (9, 40, 33), (17, 264, 20), (64, 72, 12), (40, 16, 100)]
LARGE = product([1, 2, 10, 20, 60], [8, 1032, 4096], [1, 77, 2048])
TestParity = parity(
    "indexed_logits",
    agree,
    emulated=[(*size, *dtypes) for size in SIZES for dtypes in zip(HALVES, (torch.int64, torch.int32))],
    cpu=[(n, 40, k, dtype, torch.int64) for n, k in ((1, 5), (11, 30)) for dtype in FLOATS],
    cuda=[(*size, dtype, torch.int64) for size in LARGE for dtype in HALVES],
)
