"""Online capture: the target runs in the training process, nothing touches the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..models.target import HFTarget, TargetStates


@dataclass(frozen=True)
class RowBatch:
    """Packed rows.

    Attributes:
        input_ids: (B, T) int64, 0 in padding.
        loss_mask: bool (B, T), l_t of METHODS section 8.
        document: (B, T) document number in its row, 0 for padding.
        position: (B, T) positions, restarting at 0 in each document.
    """

    input_ids: Tensor
    loss_mask: Tensor
    document: Tensor
    position: Tensor


@dataclass(frozen=True)
class CapturedBatch(RowBatch):
    """Packed rows with what the target made of them.

    Attributes:
        features: (B, T, n_aux * H) auxiliary layer outputs.
        hidden: (B, T, H) target hidden states as the LM head reads them.
    """

    features: Tensor
    hidden: Tensor

    def states(self, reads: Literal["aux", "hidden"]) -> Tensor:
        """What a drafter fuses: the auxiliary layers' outputs, or the final hidden states."""
        return self.features if reads == "aux" else self.hidden


class OnlineCapture:
    """Runs the target row by row and keeps what fits in memory.

    A row is captured alone, never as part of a batch: its states are then the same bits whatever it is
    batched with, so that a resumed run, whose memory is empty, repeats the interrupted one exactly.

    Args:
        target: the frozen target.
        budget_bytes: memory for kept states; rows beyond it are computed again each time.
    """

    def __init__(self, target: HFTarget, budget_bytes: int) -> None:
        self.target = target
        self._left = budget_bytes
        self._kept: dict[object, TargetStates] = {}

    def __call__(self, rows: RowBatch, keys: Sequence[object]) -> CapturedBatch:
        """Capture rows; ``keys`` (one a row) name them in memory."""
        states = [self._row(rows, index, key) for index, key in enumerate(keys)]
        device = rows.input_ids.device  # kept rows lie in the host's memory
        return CapturedBatch(
            **vars(rows),
            features=torch.cat([s.features.to(device) for s in states]),
            hidden=torch.cat([s.hidden.to(device) for s in states]),
        )

    def _row(self, rows: RowBatch, index: int, key: object) -> TargetStates:
        if key in self._kept:
            return self._kept[key]
        one = slice(index, index + 1)
        states = self.target.capture(rows.input_ids[one], rows.position[one], rows.document[one])
        size = sum(t.numel() * t.element_size() for t in (states.features, states.hidden))
        if size <= self._left:
            self._left -= size
            self._kept[key] = TargetStates(states.features.cpu(), states.hidden.cpu())
        return states
