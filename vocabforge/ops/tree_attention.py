"""Attention of a draft tree's nodes (or of a single token) over a long prefix and over their ancestors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import UsageError
from .arguments import INT64, check_range, check_tensors, fitting_backend
from .backend import FLOATS, Op
from .trees import WORD

HEAD_SIZES = (64, 80, 96, 128, 192, 256)  # sizes that the kernels are compiled for
_NAME, _NEEDS = "tree_attention", f"a head size D of {', '.join(map(str, HEAD_SIZES))}"


def visible_slots(
    lengths: Tensor, words: Tensor, capacity: int, positions: Tensor | None, window: int
) -> Tensor:
    """Return the attention mask, bool (B, T, S); arguments as in :func:`tree_attention` (window 0: none)."""
    slots = torch.arange(capacity, device=lengths.device)
    behind = slots - lengths.clamp(0, capacity)[:, None]  # (B, S)
    bits = words.shape[2] * WORD
    place = behind.clamp(0, bits - 1)[:, None].expand(-1, words.shape[1], -1)  # (B, T, S)
    tree = (words.gather(2, place // WORD) >> place % WORD & 1).bool()
    prefix = (behind < 0)[:, None]
    if window > 0:
        assert positions is not None
        prefix = prefix & (positions[:, :, None] - slots < window)
    return prefix | (tree & ((behind >= 0) & (behind < bits))[:, None])


def tree_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    words: Tensor,
    positions: Tensor | None,
    window: int,
    scale: float,
) -> Tensor:
    """Compute :func:`tree_attention` in PyTorch."""
    batch, queries, heads, size = q.shape
    kv_heads, capacity = keys.shape[1], keys.shape[2]
    seen = visible_slots(lengths, words, capacity, positions, window)  # (B, T, S)
    read = seen.any(1)[:, None, :, None]  # (B, 1, S, 1); slots that no query attends to may be uninitialised
    k = keys.float().masked_fill(~read, 0.0)
    v = values.float().masked_fill(~read, 0.0)
    rows = q.float().view(batch, queries, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
    scores = rows @ k[:, :, None].transpose(-1, -2) * scale  # (B, Hkv, G, T, S)
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(-1)
    weights = weights.masked_fill(~seen.any(-1)[:, None, None, :, None], 0.0)  # queries that see no slot
    return (weights @ v[:, :, None]).permute(0, 3, 1, 2, 4).reshape(q.shape).to(q.dtype)


_OP = Op(_NAME, tree_attention_reference)


def tree_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    words: Tensor,
    *,
    positions: Tensor | None = None,
    window: int | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute softmax attention over a row's committed slots and over each query's ancestors after them.

    Query t of row b attends to slots 0 .. lengths[b] - 1, and slot lengths[b] + j if bit j % 64 of
    words[b, t, j // 64] is set (``DraftTree.ancestor_words``, including the query's own slot). For a single
    token use T = 1 and word 1. The amount read is determined on the device from ``lengths`` and ``words``: no
    host synchronisation, and one captured graph serves all lengths. Scores, softmax and sums are fp32. The
    same call gives the same bits; another batch size or capacity may split the keys differently. Based on
    Flash-Decoding and FlashAttention (arXiv:2205.14135).

    Args:
        q: (B, T, Hq, D) fp32, bf16 or fp16.
        keys: (B, Hkv, S, D) of the same dtype, a view of a cache with last stride 1; Hkv divides Hq.
        values: (B, Hkv, S, D). Slots up to the last one seen by a query of the row must be finite.
        lengths: (B,) int64 numbers of committed slots, clamped to 0 .. S.
        words: (B, T, W) int64; bits of slots beyond S - 1 are ignored.
        positions: (B, T) int64 positions of the queries; required with a window.
        window: a committed slot is seen only if position - slot is below ``window``. Ancestors are always
            seen; clear their bits if the window is smaller than the depth of the tree.
        scale: factor of the scores, above 0; None: D ** -0.5.
        backend: the kernels support D in ``HEAD_SIZES``; ``auto`` uses the reference for others.

    Returns:
        (B, T, Hq, D) in q's dtype; zeros for a query that attends to no slot.
    """
    sizes = check_tensors(
        _NAME,
        ("q", q, "BTHD", FLOATS),
        ("keys", keys, "BKSD", (q.dtype,)),
        ("values", values, "BKSD", (q.dtype,)),
        ("lengths", lengths, "B", INT64),
        ("words", words, "BTW", INT64),
        ("positions", positions, "BT", INT64),
    )
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.stride(3) != 1:
            raise UsageError(
                f"{_NAME}: the last dimension of {name} has gaps",
                got=tensor.stride(),
                expected="stride 1 at the end",
            )
    for name in "BTHKSW":
        check_range(_NAME, name, sizes[name], 1, None)
    if sizes["H"] % sizes["K"]:
        raise UsageError(
            f"{_NAME}: invalid number of heads",
            got=f"{sizes['H']} query heads, {sizes['K']} key heads",
            expected="query heads that are a multiple of the key heads",
        )
    if window is not None:
        check_range(_NAME, "the window", window, 1, None)
        if positions is None:
            raise UsageError(
                f"{_NAME}: a window needs the queries' positions", got="None", expected="(B, T) int64"
            )
    size = sizes["D"]
    scale = size**-0.5 if scale is None else float(scale)
    if not scale > 0.0:
        raise UsageError(f"{_NAME}: the scale is not above 0", got=scale, expected="above 0")
    backend = fitting_backend(_NAME, backend, q, size in HEAD_SIZES, _NEEDS)
    places = None if window is None or positions is None else positions.contiguous()
    parts = q.contiguous(), keys, values, lengths.contiguous(), words.contiguous()
    out: Tensor = _OP(backend, *parts, places, window or 0, scale)
    return out
