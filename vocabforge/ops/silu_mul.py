"""Activation of a gated MLP: silu(gate) * up."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .arguments import check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """Compute :func:`silu_mul` in PyTorch."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


_OP = Op("silu_mul", silu_mul_reference)


def silu_mul(gate_up: Tensor, *, backend: str = "auto") -> Tensor:
    """Compute silu(gate) * up, rounding the silu to the dtype before the product like two PyTorch calls.

    Source: Shazeer, 2020 (SwiGLU), equation 5.

    Args:
        gate_up: (R, 2i) bf16, fp16 or fp32: gates, then ups of each row.
        backend: the kernel needs i to be a multiple of 8.

    Returns:
        (R, i) of the same dtype.
    """
    width = check_tensors("silu_mul", ("gate_up", gate_up, "RW", FLOATS))["W"]
    check_range("silu_mul", "the width of a row modulo 2", width % 2, 0, 0)
    check_range("silu_mul", "the width of a row", width, 2, None)
    backend = fitting_backend("silu_mul", backend, gate_up, width % 16 == 0, "rows of 2i, i a multiple of 8")
    out: Tensor = _OP(backend, gate_up.contiguous())
    return out
