"""What queries see of a cache, for kernels: lengths and bits on the device in place of a dense mask.

A dense mask has the shape of what is looked at, so that a captured pass would need one recording for each length. Here
only the committed length differs, and it is a tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.tree_attention import tree_attention
from ..ops.trees import bits_of


class Sight(NamedTuple):
    """What T queries of each of B rows see: the first slots, and behind them what bits say, whatever the window.

    Attributes:
        lengths: (B,) int64; slots 0 .. lengths - 1 hold these positions, and every query sees them.
        words: (B, T, W) int64; slot lengths + j is seen where bit j % 64 of word j // 64 is set.
        positions: (B, T) int64 of the queries, for windows.
        reach: a window for all layers: positions that a query sees, its own included; None for all.
    """

    lengths: Tensor
    words: Tensor
    positions: Tensor
    reach: int | None = None


def sight_attention(q: Tensor, keys: Tensor, values: Tensor, sight: Sight, own: int | None = None) -> Tensor:
    """Attention of one layer against its cache.

    Args:
        q: (B, T, h, D).
        keys, values: (B, kv, S, D), with those of the queries' own tokens.
        own: the layer's window, in positions, or None.

    Returns:
        (B, T, h, D).
    """
    window = min((one for one in (own, sight.reach) if one is not None), default=None)
    lengths, words, positions, _ = sight
    return tree_attention(q, keys, values, lengths, words, positions=positions, window=window)


def line_sight(slots: Tensor, reach: int | None = None) -> Sight:
    """Of T queries in a row of slots (B, T) that are their positions: each sees itself and all before it."""
    batch, count = slots.shape
    if count == 1:
        words = torch.ones_like(slots)[:, :, None]
    else:
        places = torch.arange(count, device=slots.device)
        words = bits_of(places <= places[:, None]).repeat(batch, 1, 1)  # (B, T, W)
    # Not views with gaps: every layer would copy them for its kernel.
    return Sight(slots[:, 0].contiguous(), words, slots, reach)
