"""Lengths and masks over cache slots. Lengths come in steps, so that shapes repeat."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.kv_cache import causal_mask

VIEW_STEP = 128


def view_length(used: int, capacity: int) -> int:
    """Slots that a pass looks at: ``used`` in whole steps of ``VIEW_STEP``, at most ``capacity``."""
    return min(-(-used // VIEW_STEP) * VIEW_STEP, capacity)


def tree_masks(
    ancestors: Tensor, depths: Tensor, committed: int, view: int, window: int | None
) -> tuple[Tensor, Tensor | None]:
    """What tree nodes see: all committed slots and, behind them, their ancestors and themselves.

    Args:
        ancestors: bool (N, N).
        depths: (N,) int64.
        committed: slots 0 .. committed - 1 hold these positions.
        view: slots looked at.
        window: sliding window of some layers, in positions, or None.

    Returns:
        bool (N, view) for full layers, and for layers with a window (None where none is needed).
    """
    count = len(depths)
    slots = torch.arange(view, device=depths.device)
    mask = (slots < committed).repeat(count, 1)
    mask[:, committed : committed + count] = ancestors
    if window is None or view <= window:
        return mask, None
    key_positions = slots.clone()
    key_positions[committed : committed + count] = committed + depths
    near = causal_mask(committed + depths, key_positions, window)
    return mask, mask & near
