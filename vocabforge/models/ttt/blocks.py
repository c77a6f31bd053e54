"""Blocks of drafts computed in one pass: their anchors, and the attention of a block.

A block belongs to an anchor, the position t whose next token x_{t+1} is the last known token. Its draft k
(from 0) predicts x_{t+2+k}. All rows of a block attend to the target's states at positions s <= t of t's
document, and to rows of the same block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..device import has_triton
from .attention import FLEX_HEAD_DIM


def every_anchor(ids: Tensor) -> Tensor:
    """Return an anchor at every position of ``ids`` (B, T): (B, T)."""
    return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)


def block_attention(
    q: Tensor,
    context: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    anchors: Tensor,
    first: Tensor,
    *,
    causal: bool = False,
    attention: str = "auto",
) -> Tensor:
    """Attend from A blocks of b rows each to the context up to their anchors and to the blocks themselves.

    Args:
        q: (B, h, A * b, D), block by block.
        context: keys and values (B, kv, T, D) at the positions of the packed rows.
        own: keys and values (B, kv, A * b, D) of the blocks' rows.
        anchors: int64 (B, A) positions t, -1 for none; the output of rows without an anchor is not used.
        first: int64 (B, T) first position of each position's document.
        causal: a row attends only to the rows of its block up to itself, not to all of them.
        attention: ``flex`` (CUDA) works in key blocks, ``eager`` holds (A * b, T + b) weights; or ``auto``.

    Returns:
        (B, h, A * b, D).
    """
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, *rest = (x.to(dtype) for x in (q, *context, *own))
        context, own = (rest[0], rest[1]), (rest[2], rest[3])
    last = anchors.clamp(min=0)  # (B, A)
    first = first.gather(1, last)
    auto = "flex" if q.is_cuda and q.shape[-1] >= FLEX_HEAD_DIM and has_triton() else "eager"
    if (auto if attention == "auto" else attention) == "flex":
        return _flex(q, context, own, first, last, causal)
    return _eager(q, context, own, first, last, causal)


def _eager(
    q: Tensor,
    context: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    first: Tensor,
    last: Tensor,
    causal: bool,
) -> Tensor:
    blocks, length = last.shape[1], context[0].shape[2]
    size = q.shape[2] // max(blocks, 1)
    group = q.shape[1] // context[0].shape[1]
    (keys, values), (own_keys, own_values) = (
        tuple(x.repeat_interleave(group, dim=1) for x in pair) for pair in (context, own)
    )
    q = q * q.shape[-1] ** -0.5
    place = torch.arange(length, device=q.device)
    seen = (place >= first[..., None]) & (place <= last[..., None])  # (B, A, T)
    low = torch.finfo(q.dtype).min
    far = (q @ keys.transpose(-1, -2)).unflatten(2, (blocks, size))  # (B, h, A, b, T)
    far = far.masked_fill(~seen[:, None, :, None], low)
    q, own_keys, own_values = (x.unflatten(2, (blocks, size)) for x in (q, own_keys, own_values))
    near = q @ own_keys.transpose(-1, -2)  # (B, h, A, b, b)
    if causal:
        near = near.masked_fill(~torch.ones(size, size, dtype=torch.bool, device=q.device).tril(), low)
    precise = torch.promote_types(q.dtype, torch.float32)
    weights = torch.cat([far, near], -1).to(precise).softmax(-1).to(q.dtype)
    far, near = weights.split([length, size], -1)
    return (far.flatten(2, 3) @ values).add_((near @ own_values).flatten(2, 3))


def _flex(
    q: Tensor,
    context: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    first: Tensor,
    last: Tensor,
    causal: bool,
) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask

    from .flex import flex_kernel

    keys, values = (torch.cat(pair, 2) for pair in zip(context, own))  # (B, kv, T + A * b, D)
    length, rows = context[0].shape[2], q.shape[2]
    size = rows // last.shape[1]

    def rule(b: Tensor, _h: Tensor, row: Tensor, key: Tensor) -> Tensor:
        block = row // size
        far = (key < length) & (key >= first[b, block]) & (key <= last[b, block])
        at = key - length
        near = (key >= length) & (at // size == block)
        return far | (near & (at <= row) if causal else near)

    mask = create_block_mask(rule, len(q), None, rows, length + rows, device=q.device)
    attended: Tensor = flex_kernel()(q, keys, values, block_mask=mask, enable_gqa=q.shape[1] != keys.shape[1])
    return attended


def block_positions(anchors: Tensor, position: Tensor, size: int, most: int) -> Tensor:
    """Return the rotary positions (B, A * b) of blocks whose first row is the token after the anchor.

    Args:
        anchors: (B, A), -1 for none.
        position: (B, T) of the packed rows.
        size: b.
        most: length of the rotary table; rows beyond its end, which never count, use its last position.
    """
    known = position.gather(1, anchors.clamp(min=0)) + 1  # (B, A)
    steps = torch.arange(size, device=position.device)
    return (known[..., None] + steps).clamp(max=most - 1).flatten(1)


def tokens_behind(ids: Tensor, anchors: Tensor, offset: int) -> Tensor:
    """Return x_{t + offset} for anchors (B, A) in ids (B, T), 0 past the end: (B, A)."""
    padded = F.pad(ids, (0, offset))
    return padded.gather(1, anchors.clamp(min=0) + offset)
