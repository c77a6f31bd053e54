"""Linear projections of a decoder layer for few rows, fused with the preceding norm and the following op."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from . import backend as backends
from .add_rms_norm import add_rms_norm, rms_norm_reference
from .backend import FLOATS, Op
from .checks import check_dtype, check_range, check_shape, check_together, fitting_backend
from .rope_store import check_rotation, rope_store, rope_store_reference, vectors
from .silu_mul import silu_mul_reference

MOST_ROWS = 64  # rows of x


def fused_linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    """Compute :func:`fused_linear` in PyTorch with the ops it replaces, including their rounding."""
    normed = x if norm is None else rms_norm_reference(x, norm, eps)
    out = F.linear(normed, weight, bias)
    out = silu_mul_reference(out) if gated else out
    return out if residual is None else out + residual


def fused_qkv_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    heads: int,
) -> Tensor:
    """Compute :func:`fused_qkv` in PyTorch with the ops it replaces, including their rounding."""
    qkv = fused_linear_reference(x, weight, bias, norm, eps).view(*slots.shape, -1)
    return rope_store_reference(qkv, cos, sin, keys, values, slots, heads)


_LINEAR = Op("fused_linear", fused_linear_reference)
_QKV = Op("fused_qkv", fused_qkv_reference)


def layers_backend(x: Tensor) -> str | None:
    """Return the backend that decoder layers use for these ops on hidden states x (N, d); None: unfused."""
    rows, d = x.shape
    return backends.FUSED_LAYERS if rows <= MOST_ROWS and d % 8 == 0 else None


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gated: bool = False,
    backend: str = "auto",
) -> Tensor:
    """Compute ``linear(rms_norm(x))`` plus a residual or SwiGLU product, in one kernel for few rows.

    The kernel rounds once, after multiplying x by the norm's weight, and applies the row scales to the fp32
    sums; ``add_rms_norm`` rounds the scaled x and again its product with the weight. All other rounding is
    the same.

    Source: Zhang and Sennrich, 2019, equation 4; Shazeer, 2020, equation 5.

    Args:
        x: (N, d) bf16, fp16 or fp32. The kernel supports bf16 and fp16, N up to 64 and d a multiple of 8. In
            fp16 x * norm could overflow, so ``add_rms_norm`` runs first.
        weight: (V, d) of the same dtype, like the following tensors; V at most 2^20 for the kernel.
        bias: (V,).
        norm: (d,) weight of x's RMS norm; None: no norm.
        eps: epsilon of the norm.
        residual: (N, V), added to the rounded products.
        gated: the first half of the products are gates, the second half ups; no residual.

    Returns:
        (N, V) of x's dtype; (N, V / 2) if ``gated``.

    Raises:
        UsageError: unsupported shape, dtype or device, or unavailable backend.
    """
    op, rows = "fused_linear", len(weight)
    x, norm, backend = _prepare(op, x, weight, bias, norm, eps, backend)
    if gated:
        check_shape(op, "weight (rows: even)", weight, rows + rows % 2, None)
    if residual is not None:
        check_shape(op, "residual", residual, len(x), -1 if gated else rows)
        check_dtype(op, "residual", residual, {x.dtype})
        check_together(op, (x, residual))
        residual = residual.contiguous()
    out: Tensor = _LINEAR(backend, x, weight.contiguous(), bias, norm, eps, residual, gated)
    return out


def fused_qkv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    heads: int,
    norm: Tensor | None = None,
    eps: float = 1e-6,
    qk_norm: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute ``rope_store(linear(rms_norm(x)))`` in one kernel for few rows; two kernels with ``qk_norm``.

    Args:
        x: (B * T, d); for x, weight ((Hq + 2 Hkv) * D, d), bias, norm and eps see :func:`fused_linear`.
        cos, sin, keys, values, slots, heads, qk_norm: see :func:`.rope_store.rope_store`; eps applies to all
            norms.

    Returns:
        Rotated queries (B, T, Hq, D).

    Raises:
        UsageError: unsupported shape, dtype or device, or unavailable backend.
    """
    op = "fused_qkv"
    if qk_norm is not None:
        qkv = fused_linear(x, weight, bias, norm=norm, eps=eps, backend=backend).view(*slots.shape, -1)
        place, after = (qkv, cos, sin, keys, values, slots), backend if backend == "reference" else "auto"
        return rope_store(*place, heads=heads, qk_norm=qk_norm, eps=eps, backend=after)
    x, norm, backend = _prepare(op, x, weight, bias, norm, eps, backend)
    check_shape(op, "slots", slots, None, None)
    check_range(op, "the number of rows less that of slots", len(x) - slots.numel(), 0, 0)
    like = x[:, :1].expand(-1, len(weight)).unflatten(0, slots.shape)  # a view with the shape of the products
    check_rotation(like, (cos, sin), (keys, values), slots, heads)
    angles = vectors(cos), vectors(sin)
    given = x, weight.contiguous(), bias, norm, eps, *angles, keys, values, slots.contiguous(), heads
    q: Tensor = _QKV(backend, *given)
    return q


def _prepare(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Tensor | None, eps: float, backend: str
) -> tuple[Tensor, Tensor | None, str]:
    """Check the arguments; return x (normalised if the kernel cannot), the remaining norm and the backend."""
    check_shape(op, "x", x, None, None)
    check_dtype(op, "x", x, FLOATS)
    rows, d = x.shape
    check_shape(op, "weight", weight, None, d)
    for name, one, size in (("bias", bias, len(weight)), ("norm", norm, d)):
        if one is not None:
            check_shape(op, name, one, size)
            check_dtype(op, name, one, {x.dtype})
    check_dtype(op, "weight", weight, {x.dtype})
    check_together(op, (x, weight, bias, norm))
    fits = 1 <= rows <= MOST_ROWS and d % 8 == 0 and len(weight) <= 2**20
    needs = f"1 to {MOST_ROWS} rows, d a multiple of 8, at most 2^20 rows of the weight"
    backend = fitting_backend(op, backend, x, fits, needs)
    if norm is not None and x.dtype == torch.float16 and backend != "reference":
        x, norm = add_rms_norm(x, None, norm, eps)[0], None
    return x.contiguous(), None if norm is None else norm.contiguous(), backend
