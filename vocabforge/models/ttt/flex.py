"""TTT attention on CUDA: flex attention over the step-0 keys, merged with a row's own keys by log-sum-exp."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .merged import Documents, merge, own_keys_backward

BLOCK = 128


def flex_attention(
    q: Tensor, k: Sequence[Tensor], v: Sequence[Tensor], documents: Documents, reach: int | None = None
) -> Tensor:
    """Compute :func:`.merged.merged_attention` on CUDA; requires Triton.

    Args:
        reach: number of step-0 keys that a query attends to, the one at its own row included; None for all.
    """
    key = f"flex {reach}"
    if key not in documents.cache:
        documents.cache[key] = block_mask(documents.first, reach)
    from torch.nn.attention.flex_attention import AuxRequest

    attended, aux = flex_kernel()(
        q,
        k[0],
        v[0],
        block_mask=documents.cache[key],
        enable_gqa=q.shape[1] != k[0].shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if len(k) == 1:
        return attended
    return _Merge.apply(q, attended, aux.lse, *k[1:], *v[1:])


@functools.cache
def flex_kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention as function

    return torch.compile(function, dynamic=True)


def block_mask(first: Tensor, reach: int | None = None) -> Any:
    """Build the block mask of "key s is visible to query t iff first[t] <= s <= t" without a (T, T) tensor.

    Key blocks fully visible to all queries of a block are marked full; the kernel applies the rule in others.

    Args:
        first: int64 (B, T).
        reach: number of keys up to its own that a query sees; None for all.
    """
    if reach is not None:
        first = first.maximum(torch.arange(first.shape[1], device=first.device) - reach + 1)
    from torch.nn.attention.flex_attention import BlockMask

    batch, length = first.shape
    count = -(-length // BLOCK)
    # Padding repeats the last token, which changes neither minimum nor maximum.
    padded = torch.cat([first, first[:, -1:].expand(-1, count * BLOCK - length)], dim=1)
    blocks = padded.view(batch, count, BLOCK)
    earliest = blocks.amin(-1)[..., None]  # (B, count, 1)
    latest = blocks.amax(-1)[..., None]
    own = torch.arange(count, device=first.device)[:, None]  # (count, 1)
    keys = torch.arange(count, device=first.device)[None]  # (1, count)
    visible = (keys <= own) & ((keys + 1) * BLOCK > earliest)  # (B, count, count)
    # As in torch's block masks, a partial last block is never marked full.
    full = (keys < own) & (keys * BLOCK >= latest) & ((own + 1) * BLOCK <= length)

    def rule(b: Tensor, _h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (s <= t) & (s >= first[b, t])

    return BlockMask.from_kv_blocks(
        *_listed(visible & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=rule,
        seq_lengths=(length, length),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Convert bool (B, Q, K) to counts (B, 1, Q) and indices (B, 1, Q, K), the chosen ones first."""
    order = torch.sort(chosen.int(), dim=-1, descending=True, stable=True).indices
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32)[:, None].contiguous()


class _Merge(torch.autograd.Function):
    """Merge of a row's own keys into (out, lse) that saves neither weights nor fp32 copies."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, out: Tensor, lse: Tensor, *kv: Tensor) -> Tensor:
        k, v = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        with torch.autocast(q.device.type, enabled=False):
            merged, total = merge(q, out, lse, k, v)
        ctx.save_for_backward(q, out, lse, merged, total, *kv)
        return merged

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, out, lse, merged, total, *kv = ctx.saved_tensors
        k, v = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        with torch.autocast(q.device.type, enabled=False):
            wide = grad.float()
            delta = (wide * merged).sum(-1)
            weight = (lse - total).exp()  # of the causal part
            d_out = (weight[..., None] * wide).to(out.dtype)
            d_lse = (weight * ((wide * out).sum(-1) - delta)).to(lse.dtype)
            dq, dk, dv = own_keys_backward(grad, q, total, delta, k, v)
        return (dq, d_out, d_lse, *dk, *dv)
