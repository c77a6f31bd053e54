"""Committed positions of the rows of a cache, and the slots and masks of passes after them.

Slot s of a cache holds position s. New tokens take the slots after the committed ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..models.kv_cache import Mask, Near, TreeMask
from ..ops.trees import WORD

VIEW_STEP = 128  # views of compiled passes are rounded up to multiples of it, so that shapes repeat


def view_length(used: int, capacity: int) -> int:
    """Round ``used`` slots up to a multiple of ``VIEW_STEP``, at most ``capacity``."""
    return min(-(-used // VIEW_STEP) * VIEW_STEP, capacity)


def block_mask(visible: Tensor, committed: Tensor, view: int) -> Tensor:
    """Return the attention mask of N queries per row, bool (B, N, view).

    All queries attend to the slots of the ``committed`` (B,) positions, from 0 on. ``visible`` bool (B, N, M)
    is their mask over the M slots after these; M is at least 1.
    """
    size = visible.shape[-1]
    behind = torch.arange(view, device=visible.device) - committed[:, None]  # (B, view)
    inside = visible.gather(2, behind.clamp(0, size - 1)[:, None].expand(-1, visible.shape[1], -1))
    return (behind < 0)[:, None] | (inside & ((behind >= 0) & (behind < size))[:, None])


def near_mask(depths: Tensor, committed: Tensor, view: Tensor, near: Near) -> Tensor:
    """Return the slots of ``view`` (S',) within each node's window or chunk, bool (B, N, S').

    The nodes have ``depths`` (B, N), relative to the ``committed`` (B,) slots.
    """
    behind = view - committed[:, None]  # (B, S')
    node = behind.clamp(0, depths.shape[1] - 1)
    key_positions = torch.where(behind < 0, view, committed[:, None] + depths.gather(1, node))
    positions = committed[:, None] + depths  # (B, N)
    return near(positions[:, :, None], key_positions[:, None])


class Positions:
    """Positions of several eager rows, or of compiled passes: masks are tensors.

    ``committed`` (B,) int64 counts the committed positions; ``lengths`` is its copy on the host. A query attends
    to the last ``window`` positions, its own included, and to all nodes of its draft; None: to all positions.
    """

    bits = False  # tree masks are made of bits

    def __init__(self, rows: int, capacity: int, device: torch.device, window: int | None = None) -> None:
        self.window = window if window is not None and window < capacity else None
        self.slots = torch.arange(capacity, device=device)
        self.committed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.lengths = [0] * rows

    def extend(self, row: int, count: int) -> Tensor:
        """Commit a row's next positions on the device and the host; return their slots (T,)."""
        start = self.lengths[row]
        self.committed[row] += count
        self.lengths[row] += count
        return self.slots[start : start + count]

    def reset(self, row: int) -> None:
        self.committed[row] = 0
        self.lengths[row] = 0

    def note(self, counts: Sequence[int]) -> None:
        """Add committed positions of each row on the host."""
        self.lengths = [old + new for old, new in zip(self.lengths, counts)]

    def ahead(self, used: int, count: int) -> Tensor:
        """Return ``count`` slots (B, count), ``used`` slots after the committed ones."""
        return self.committed[:, None] + self.slots[used : used + count]

    def view(self, ahead: int) -> Tensor:
        """Return the slots (S',) that a pass with ``ahead`` new slots reads."""
        return self.slots[: view_length(max(self.lengths) + ahead, len(self.slots))]

    def line_mask(self, slots: Tensor, used: int, view: Tensor) -> Mask:
        """Return the mask of consecutive tokens in ``slots`` (B, T), ``used`` slots after the committed ones."""
        return self.causal(slots, view)

    def causal(self, slots: Tensor, view: Tensor) -> Tensor:
        """Return the slots of ``view`` (S',) that consecutive tokens in ``slots`` (B, T) see, bool (B, T, S')."""
        slots = slots[:, :, None]
        seen = view <= slots
        return seen if self.window is None else seen & (view > slots - self.window)

    def tree_mask(
        self, above: Tensor | None, words: Tensor | None, depth: int, positions: Tensor, view: Tensor
    ) -> Mask:
        """Return the mask of tree nodes at ``positions`` (B, N), ``depth`` after the committed ones.

        Args:
            above: bool (B, N, M) attended slots after the committed ones; None if ``bits``.
            words: the same as bits, if ``bits``.
        """
        assert above is not None
        seen = block_mask(above, self.committed, len(view))
        if self.window is None:
            return seen
        near = view > positions[:, :, None] - self.window
        return seen & (near | (view >= self.committed[:, None, None]))

    def begin_pass(self, count: int = 0) -> None:
        """Start a pass over ``count`` new slots, or all that a cycle may write."""

    def end_pass(self) -> None:
        """End a pass; the next one has other committed positions."""


class OneRow(Positions):
    """Positions of a single eager row: the length on the host takes fewer calls, which matters on a CPU."""

    def ahead(self, used: int, count: int) -> Tensor:
        return self.slots[self.lengths[0] + used :][:count][None]

    def view(self, ahead: int) -> Tensor:
        return self.slots[: self.lengths[0] + ahead]

    def line_mask(self, slots: Tensor, used: int, view: Tensor) -> Mask:
        count = self.lengths[0] + used + 1
        if slots.shape[1] == 1 and (self.window is None or count <= self.window):
            return count
        return super().line_mask(slots, used, view)


class CapturedPositions(Positions):
    """Positions of captured passes: lengths and bits instead of mask tensors.

    Args:
        most: slots that a cycle may write.
        angles: (P, 2 D) cosines and signed sines by position, to be looked up once for a whole pass.
    """

    bits = True

    def __init__(
        self,
        rows: int,
        capacity: int,
        device: torch.device,
        window: int | None = None,
        *,
        most: int = 0,
        angles: Tensor | None = None,
    ) -> None:
        super().__init__(rows, capacity, device, window)
        self._most, self._angles = most, angles
        self._pass_slots: Tensor | None = None
        self._pass_angles: Tensor | None = None

    def begin_pass(self, count: int = 0) -> None:
        if count and self._pass_slots is not None:  # part of a pass over a whole cycle
            return
        self._pass_slots = super().ahead(0, max(count, self._most))
        self._pass_angles = None if self._angles is None else self._angles[self._pass_slots]

    def end_pass(self) -> None:
        self._pass_slots = self._pass_angles = None

    def ahead(self, used: int, count: int) -> Tensor:
        if self._pass_slots is None:
            return super().ahead(used, count)
        return self._pass_slots[:, used : used + count]

    def view(self, ahead: int) -> Tensor:
        return self.slots

    def line_mask(self, slots: Tensor, used: int, view: Tensor) -> Mask:
        if slots.shape[1] > WORD:
            return super().line_mask(slots, used, view)
        return TreeMask.chain(slots, self.window, self._turns(used, slots.shape[1]))

    def tree_mask(
        self, above: Tensor | None, words: Tensor | None, depth: int, positions: Tensor, view: Tensor
    ) -> Mask:
        assert words is not None
        return TreeMask(
            self.committed, words, positions, self.window, self._turns(depth, 1, positions.shape[1])
        )

    def _turns(self, first: int, count: int, width: int = -1) -> tuple[Tensor, Tensor] | None:
        """Return angles (B, count, D), ``first`` after the committed ones; a single one ``width`` times."""
        if self._pass_angles is None:
            return None
        cos, sin = self._pass_angles[:, first : first + count].expand(-1, width, -1).chunk(2, -1)
        return cos, sin
