"""The gated activation: reference, the layers' own, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, parity, steady
from vocabforge.models.lean.layers import activation
from vocabforge.ops.silu_mul import silu_mul

# One step of the dtype's last bit: exp and the division differ in the last bit of fp32, at most.
STEP = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 2**-21}


def inputs(rows: int, inner: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Gaussian noise, and gates far out where silu is 0 or the identity."""
    gate_up = torch.randn(rows, 2 * inner, generator=torch.Generator().manual_seed(seed)) * 3
    if rows:
        gate_up[0, :4] = torch.tensor([-200.0, 200.0, 0.0, -0.0])[: min(4, 2 * inner)]
    return gate_up.to(dtype)


def agree(rows: int, inner: int, dtype: torch.dtype, backend: str, device: str) -> None:
    gate_up = inputs(rows, inner, dtype, seed=inner).to(device)
    (out,) = steady(lambda: silu_mul(gate_up, backend=backend))
    torch.testing.assert_close(out, silu_mul(gate_up, backend="reference"), rtol=STEP[dtype], atol=1e-7)


def test_known_numbers() -> None:
    out = silu_mul(torch.tensor([[0.0, 1.0, 2.0, 7.0, -3.0, 0.5]]))
    sigmoid = torch.tensor([1.0, 2.0]).sigmoid()
    torch.testing.assert_close(out, torch.stack((torch.tensor(0.0), sigmoid[0] * -3, sigmoid[1]))[None])


@pytest.mark.parametrize("dtype", FLOATS)
def test_reference_is_the_activation_of_the_layers(dtype: torch.dtype) -> None:
    gate_up = inputs(5, 24, dtype)
    gate, up = gate_up.chunk(2, -1)
    assert torch.equal(silu_mul(gate_up), activation("silu", gate).mul_(up))


def cases(sizes: list[tuple[int, int]], dtypes: list[torch.dtype]) -> list[tuple[int, int, torch.dtype]]:
    return [(*size, dtype) for size, dtype in product(sizes, dtypes)]


TestParity = parity(
    "silu_mul",
    agree,
    emulated=cases([(1, 8), (3, 24), (2, 1032), (5, 2048), (0, 8)], HALVES),
    cpu=cases([(1, 1), (3, 20), (2, 4096), (0, 8)], FLOATS),
    cuda=cases([(1, 8), (10, 14_336), (640, 1032), (0, 8)], HALVES),
)
