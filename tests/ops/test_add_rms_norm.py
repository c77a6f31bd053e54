"""Residual addition and norm: reference, the layers' own norm, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, moved, parity
from vocabforge.core.errors import UsageError
from vocabforge.models.lean.layers import rms_norm
from vocabforge.ops.add_rms_norm import add_rms_norm, join_norms

# Two steps of the last bit, for two roundings: sums in another order may turn each of them.
STEP = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 2**-20}
# Below fp16's smallest normal number a step is 2^-24: one for each rounding, the first times a weight below 8.
SMALLEST = {torch.bfloat16: 0.0, torch.float16: 9 * 2**-24, torch.float32: 0.0}


def inputs(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(rows, width, generator=stream) * scale for scale in (3.0, 0.7))
    return x.to(dtype), residual.to(dtype), torch.randn(width, generator=stream).to(dtype)


def compare(backend: str, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float = 1e-5) -> None:
    normed, total = add_rms_norm(x, residual, weight, eps, backend=backend)
    expected, expected_total = add_rms_norm(x, residual, weight, eps, backend="reference")
    assert torch.equal(total, expected_total)
    assert torch.equal(normed, add_rms_norm(x, residual, weight, eps, backend=backend)[0])
    torch.testing.assert_close(normed, expected, rtol=STEP[x.dtype], atol=SMALLEST[x.dtype])


def compare_joined(rows: int, width: int, dtype: torch.dtype, backend: str, device: str) -> None:
    """Each half is the norm of its rows to the bit, by the same backend; with and without ids."""
    table, x, first = moved(inputs(rows + 5, width, dtype, seed=width), device)
    x, second = x[:rows], first.flip(0)
    ids = torch.arange(rows - 1, -1, -1, device=device) * (rows + 4) // max(rows - 1, 1)
    for chosen, picked in ((ids, table[ids]), (None, table[:rows])):
        given = table if chosen is not None else table[:rows]
        found = join_norms(given, chosen, x, first, second, 1e-5, backend=backend)
        assert found.shape == (rows, 2 * width)
        for half, part, weight in zip(found.split(width, 1), (picked, x), (first, second)):
            assert torch.equal(half, add_rms_norm(part, None, weight, 1e-5, backend=backend)[0])


def agree(rows: int, width: int, dtype: torch.dtype, backend: str, device: str) -> None:
    x, residual, weight = moved(inputs(rows, width, dtype, seed=width), device)
    compare(backend, x, residual, weight)
    compare(backend, x, None, weight, eps=2.0)
    compare_joined(rows, width, dtype, backend, device)


def test_known_rows() -> None:
    x, residual = torch.tensor([[1.0, -1.0], [0.0, 3.0]]), torch.tensor([[2.0, 5.0], [0.0, -3.0]])
    normed, total = add_rms_norm(x, residual, torch.tensor([1.0, 2.0]), 0.5)
    assert total.tolist() == [[3.0, 4.0], [0.0, 0.0]]
    scale = (12.5 + 0.5) ** -0.5
    torch.testing.assert_close(normed, torch.tensor([[3 * scale, 8 * scale], [0.0, 0.0]]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_reference_is_the_norm_of_the_layers(dtype: torch.dtype) -> None:
    x, residual, weight = inputs(7, 136, dtype)
    normed, total = add_rms_norm(x, residual, weight, 1e-5, backend="reference")
    assert torch.equal(total, x + residual)
    expected = rms_norm(x + residual, weight, torch.tensor(1e-5))
    torch.testing.assert_close(normed, expected, rtol=0 if dtype in HALVES else 1e-6, atol=0)


def test_without_a_residual_the_sum_is_the_input() -> None:
    x, _, weight = inputs(3, 16, torch.bfloat16)
    normed, total = add_rms_norm(x, None, weight, 1e-5)
    assert total is x
    assert torch.equal(normed, add_rms_norm(x, torch.zeros_like(x), weight, 1e-5)[0])


def test_joined_norms_by_hand() -> None:
    table, x = torch.tensor([[9.0, 9.0], [3.0, 4.0]]), torch.tensor([[1.0, -1.0]])
    found = join_norms(table, torch.tensor([1]), x, torch.tensor([1.0, 2.0]), torch.tensor([5.0, 7.0]), 0.0)
    scale = 12.5**-0.5
    torch.testing.assert_close(found, torch.tensor([[3 * scale, 8 * scale, 5.0, -7.0]]))


def test_wrong_joined_norms_are_refused() -> None:
    table, x, weight = inputs(4, 16, torch.bfloat16)
    ids = torch.zeros(4, dtype=torch.int64)
    for given in (
        (table[:3], None, x, weight, weight),
        (table, ids[:3], x, weight, weight),
        (table, ids.int(), x, weight, weight),
        (table.float(), ids, x, weight, weight),
        (table, ids, x[:, :8], weight, weight),
        (table, ids, x, weight, weight[:8]),
    ):
        with pytest.raises(UsageError, match="join_norms"):
            join_norms(*given, 1e-5)


def test_emulated_joined_norms_take_rows_of_wider_tensors_and_no_rows(
    emulated: Callable[[str], None],
) -> None:
    """Zeros stand for an id outside the table: no kernel reads beyond it."""
    emulated("add_rms_norm")
    wide, x, weight = inputs(5, 96, torch.bfloat16)
    table, weight, ids = wide[:, 64:], weight[:32], torch.tensor([4, 0, 5, -1])
    found = join_norms(table, ids, x[:1, 7:39].expand(4, -1), weight, weight, 1e-5, backend="emulated")
    padded = torch.cat([table, torch.zeros_like(table[:1])])
    given = padded, torch.tensor([4, 0, 5, 5]), x[:1, 7:39].expand(4, -1).clone()
    assert torch.equal(found, join_norms(*given, weight, weight, 1e-5, backend="emulated"))
    assert join_norms(table, ids[:0], x[:0, :32], weight, weight, 1e-5, backend="emulated").shape == (0, 64)


def test_emulated_kernel_takes_rows_of_a_wider_tensor_and_rows_out_of_line(
    emulated: Callable[[str], None],
) -> None:
    emulated("add_rms_norm")
    wide = inputs(5, 96, torch.bfloat16)[0]
    _, residual, weight = inputs(5, 32, torch.bfloat16)
    compare("emulated", wide[:, 64:], residual, weight)
    compare("emulated", wide[:, 3:35], wide[:, 32:64], weight)
    compare("emulated", wide.t()[:32, :].t(), residual, weight)
    compare("emulated", wide[:0, 64:], residual[:0], weight)


def test_emulated_kernel_gives_the_same_bits_in_any_order_and_company(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated("add_rms_norm")
    x, residual, weight = inputs(4, 2056, torch.float16)
    normed, _ = add_rms_norm(x, residual, weight, 1e-6, backend="emulated")
    for row in range(4):
        monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", str(10 + row))
        alone, _ = add_rms_norm(x[row : row + 1], residual[row : row + 1], weight, 1e-6, backend="emulated")
        assert torch.equal(alone[0], normed[row])


TestParity = parity(
    "add_rms_norm",
    agree,
    emulated=product([3], [8, 256, 1000, 4096, 8200, 16_400], HALVES),
    cpu=[(*sizes, dtype) for sizes in ((1, 1), (5, 60), (2, 4096)) for dtype in FLOATS],
    cuda=product([1, 10, 640], [8, 1000, 4096, 8192, 16_384], HALVES),
)
