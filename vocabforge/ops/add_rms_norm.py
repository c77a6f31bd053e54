"""Residual addition and RMS norm in one pass over the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import INT64, check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op

_MOST_WIDTH = 32_768  # longest row that fits in the registers of a thread block


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute ``models/lean/layers.rms_norm``: fp32 statistics, rounding before the weight multiplication."""
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = (norm.square() / x.shape[-1] + eps).rsqrt()
    return (wide * scale).to(x.dtype) * weight


def add_rms_norm_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Compute :func:`add_rms_norm` in PyTorch."""
    total = x if residual is None else x + residual
    return rms_norm_reference(total, weight, eps), total


def _op_reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Match the compiled op: without a residual the sum is empty, because an op may not return its input."""
    normed, total = add_rms_norm_reference(x, residual, weight, eps)
    return normed, x[:0].clone() if residual is None else total


_OP = Op("add_rms_norm", _op_reference)


def join_norms_reference(
    table: Tensor, ids: Tensor | None, x: Tensor, first: Tensor, second: Tensor, eps: float
) -> Tensor:
    """Compute :func:`join_norms` in PyTorch."""
    rows = table if ids is None else table[ids]
    return torch.cat([rms_norm_reference(rows, first, eps), rms_norm_reference(x, second, eps)], -1)


_JOIN = Op("join_norms", join_norms_reference)


def add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Add a block's output to the residual stream and apply RMS norm to the sum.

    Source: Zhang and Sennrich, 2019, equation 4. The sum is rounded to the dtype before the norm. The norm's
    statistics are fp32, and ``sum / rms`` is rounded before the multiplication with the weight.

    Args:
        x: (R, d) bf16, fp16 or fp32 with any row stride; kernels copy rows that are not 16-byte aligned.
        residual: same as ``x``, or None: the sum is ``x``.
        weight: (d,) of the same dtype.
        eps: added to the mean square.
        backend: the kernel needs d to be a multiple of 8 and at most 32,768.

    Returns:
        Normalised sum and sum, each (R, d) of x's dtype.
    """
    op, same = "add_rms_norm", (x.dtype,)
    given = ("x", x, "Rd", FLOATS), ("weight", weight, "d", same), ("residual", residual, "Rd", same)
    check_range(op, "the width of a row", check_tensors(op, *given)["d"], 1, None)
    backend = _backend(op, backend, x)
    parts = _rows(x), None if residual is None else _rows(residual)
    normed, total = _OP(backend, *parts, weight.contiguous(), eps)
    return normed, x if residual is None else total


def join_norms(
    table: Tensor,
    ids: Tensor | None,
    x: Tensor,
    first: Tensor,
    second: Tensor,
    eps: float,
    *,
    backend: str = "auto",
) -> Tensor:
    """Concatenate the RMS norms of token embeddings and hidden states: the input of EAGLE-3's layer.

    Source: EAGLE-3 (Li et al., 2025), section 3.2; Zhang and Sennrich, 2019, equation 4, with the roundings
    of :func:`add_rms_norm`.

    Args:
        table: (V, d) bf16, fp16 or fp32 embeddings with any row stride.
        ids: (R,) int64 tokens below V; None: row r uses row r of the table, V = R.
        x: (R, d) of the same dtype with any row stride.
        first, second: (d,) of the same dtype: norm weights for the table's rows and for x.
        eps: added to the mean square.
        backend: the kernel needs d to be a multiple of 8 and at most 32,768.

    Returns:
        (R, 2 d) of x's dtype.
    """
    op = "join_norms"
    same = (x.dtype,)
    sizes = check_tensors(
        op,
        ("x", x, "Rd", FLOATS),
        ("table", table, "Rd" if ids is None else "Vd", same),
        ("ids", ids, "R", INT64),
        ("first", first, "d", same),
        ("second", second, "d", same),
    )
    check_range(op, "the width of a row", sizes["d"], 1, None)
    ids = None if ids is None else ids.contiguous()
    weights = first.contiguous(), second.contiguous()
    joined: Tensor = _JOIN(_backend(op, backend, x), _rows(table), ids, _rows(x), *weights, eps)
    return joined


def _backend(op: str, backend: str, x: Tensor) -> str:
    fits = x.shape[1] % 8 == 0 and x.shape[1] <= _MOST_WIDTH
    return fitting_backend(op, backend, x, fits, f"d a multiple of 8, at most {_MOST_WIDTH:,}")


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
