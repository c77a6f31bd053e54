"""Lengths and masks over cache slots. Lengths come in steps, so that shapes repeat."""

from __future__ import annotations

import torch
from torch import Tensor

VIEW_STEP = 128


def view_length(used: int, capacity: int) -> int:
    """Slots that a pass looks at: ``used`` in whole steps of ``VIEW_STEP``, at most ``capacity``."""
    return min(-(-used // VIEW_STEP) * VIEW_STEP, capacity)


def block_mask(visible: Tensor, committed: Tensor, view: int) -> Tensor:
    """What N queries of each row see: all committed slots and, in the M slots behind them, what ``visible`` says.

    Args:
        visible: bool (B, N, M), M at least 1.
        committed: (B,) int64; slots 0 .. committed - 1 of a row hold its positions.
        view: slots looked at.

    Returns:
        bool (B, N, view).
    """
    size = visible.shape[-1]
    behind = torch.arange(view, device=visible.device) - committed[:, None]  # (B, view)
    inside = visible.gather(2, behind.clamp(0, size - 1)[:, None].expand(-1, visible.shape[1], -1))
    return (behind < 0)[:, None] | (inside & ((behind >= 0) & (behind < size))[:, None])


def near_mask(depths: Tensor, committed: Tensor, view: Tensor, window: int) -> Tensor:
    """bool (B, N, S'): slots whose positions lie within a window before each node's own.

    Args:
        depths: (B, N) of the nodes behind the ``committed`` (B,) slots.
        view: (S',) slots looked at.
        window: in positions, the node's own included.
    """
    behind = view - committed[:, None]  # (B, S')
    node = behind.clamp(0, depths.shape[1] - 1)
    key_positions = torch.where(behind < 0, view, committed[:, None] + depths.gather(1, node))
    positions = committed[:, None] + depths  # (B, N)
    return positions[:, :, None] - key_positions[:, None] < window
