"""The product of few rows: PyTorch's numbers, the same for a row whatever rows are beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from vocabforge.ops.few_rows import MOST_ROWS, linear

pytestmark = pytest.mark.usefixtures("native_cpu")
SIZES = [(256, 64), (7, 5), (8, 9), (96, 1), (1, 33), (771, 130)]


@pytest.mark.parametrize(("depth", "columns"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, MOST_ROWS])
@pytest.mark.parametrize("biased", [False, True])
@torch.inference_mode()
def test_it_is_the_product(rows: int, depth: int, columns: int, biased: bool) -> None:
    random = torch.Generator().manual_seed(rows * depth + columns)
    x, w = torch.randn(rows, depth, generator=random), torch.randn(columns, depth, generator=random)
    bias = torch.randn(columns, generator=random) if biased else None
    expected = F.linear(x.double(), w.double(), None if bias is None else bias.double()).float()
    torch.testing.assert_close(linear(x, w, bias, backend="native"), expected, rtol=1e-5, atol=1e-4)
    halves = w.bfloat16()
    expected = F.linear(x, halves.float(), bias)
    torch.testing.assert_close(linear(x, halves, bias, backend="native"), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype) -> None:
    x, w = torch.randn(MOST_ROWS, 200), torch.randn(77, 200).to(dtype)
    together = linear(x, w, backend="native")
    for first in range(MOST_ROWS):
        for last in range(first + 1, min(first + 8, MOST_ROWS) + 1):
            assert torch.equal(linear(x[first:last], w, backend="native"), together[first:last])


@torch.inference_mode()
def test_shapes_of_batches() -> None:
    x, w = torch.randn(2, 3, 40), torch.randn(9, 40)
    torch.testing.assert_close(linear(x, w, backend="native"), F.linear(x, w))
    strided = torch.randn(40, 6).t()
    torch.testing.assert_close(linear(strided, w, backend="native"), F.linear(strided, w))
    assert linear(torch.randn(0, 40), w).shape == (0, 9)


def test_gradients_flow() -> None:
    x = torch.randn(2, 8, requires_grad=True)
    linear(x, torch.ones(3, 8)).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 8), 3.0))


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize(("depth", "columns"), [(256, 4096), (771, 1301)])
@torch.inference_mode()
def test_a_product_does_not_depend_on_the_threads(
    set_threads: Callable[[int], None], rows: int, depth: int, columns: int
) -> None:
    """Decoding may change their number while it goes on."""
    random = torch.Generator().manual_seed(rows)
    x, w = torch.randn(rows, depth, generator=random), torch.randn(columns, depth, generator=random)
    found = []
    for threads in (1, 2, 3):
        set_threads(threads)
        found.append(linear(x, w, backend="native"))
    assert all(torch.equal(found[0], other) for other in found[1:])
