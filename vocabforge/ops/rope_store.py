"""Steps between the QKV projection and attention: head norms, rotation, KV cache writes."""

from __future__ import annotations

import torch
from torch import Tensor

from .add_rms_norm import rms_norm_reference
from .arguments import FP32, INT64, check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op

_OP_NAME = "rope_store"
_MOST_DIM = 512


def rope_store_reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    heads: int,
    qk_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Compute :func:`rope_store` in PyTorch."""
    batch, kv_heads, _, dim = keys.shape
    every = qkv.view(batch, qkv.shape[1], -1, dim)  # (B, T, Hq + 2 Hkv, D)
    qk, v = every.split((heads + kv_heads, kv_heads), 2)
    if qk_norm is not None:
        qk = rms_norm_reference(qk, qk_norm, eps)
    partner = qk.roll(dim // 2, -1)
    turned = torch.addcmul(qk * cos.unsqueeze(2), partner, sin.unsqueeze(2)).to(qkv.dtype)
    q, k = turned.split((heads, kv_heads), 2)
    rows = torch.arange(batch, device=qkv.device)[:, None]  # (B, 1)
    keys[rows, :, slots] = k
    values[rows, :, slots] = v
    return q.contiguous()


_OP = Op(_OP_NAME, rope_store_reference)


def rope_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    *,
    heads: int,
    qk_norm: Tensor | None = None,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor:
    """Normalise (if a weight is given) and rotate query and key heads; write keys and values to the cache.

    Source: RoFormer (Su et al., 2021), equation 34, in the half-split order of Hugging Face checkpoints; head
    norms as in Qwen3. Rounding matches ``models/lean/layers.rms_norm`` and ``models/rope.apply_rope``.

    Args:
        qkv: (B, T, (Hq + 2 Hkv) * D) bf16, fp16 or fp32: heads of queries, keys, values.
        cos: (B, T, D) of qkv's dtype or fp32, from ``models/rope.rope_at``; the first two strides are free.
        sin: same as ``cos``, with the minus of rotate-half in its first half.
        keys: (B, Hkv, S, D) of qkv's dtype, written in place; may be a view of a larger cache if its vectors
            are contiguous (for kernels also 16-byte aligned).
        values: same as ``keys``.
        slots: (B, T) int64, distinct within a row, 0 <= slot < S. The kernels skip slots out of range.
        heads: Hq.
        qk_norm: (Hq + Hkv, D) of qkv's dtype: norm weight of each query and key head.
        eps: epsilon of the norm.
        backend: the kernel needs D to be a multiple of 16 and at most 512.

    Returns:
        Rotated queries (B, T, Hq, D).
    """
    same = (qkv.dtype,)
    sizes = check_tensors(_OP_NAME, ("keys", keys, "BKSD", same), ("values", values, "BKSD", same))
    kv_heads, dim = sizes["K"], sizes["D"]
    check_range(_OP_NAME, "the number of query heads", heads, 1, None)
    check_range(_OP_NAME, "the head dimension modulo 2", dim % 2, 0, 0)
    check_tensors(
        _OP_NAME,
        ("qkv", qkv, "BTW", FLOATS),
        ("keys", keys, "BKSD", same),
        ("cos", cos, "BTD", {qkv.dtype, *FP32}),
        ("sin", sin, "BTD", (cos.dtype,)),
        ("slots", slots, "BT", INT64),
        ("qk_norm", qk_norm, "QD", same),
        **sizes,
        Q=heads + kv_heads,
        W=(heads + 2 * kv_heads) * dim,
    )
    fits = dim % 16 == 0 and dim <= _MOST_DIM
    needs = f"D a multiple of 16, at most {_MOST_DIM}"
    backend = fitting_backend(_OP_NAME, backend, qkv, fits, needs)
    norm = None if qk_norm is None else qk_norm.contiguous()
    cos, sin = (angles if angles.stride(2) == 1 else angles.contiguous() for angles in (cos, sin))
    parts = qkv.contiguous(), cos, sin, keys, values, slots.contiguous()
    q: Tensor = _OP(backend, *parts, heads, norm, eps)
    return q
