"""Online capture: the target runs in the training process, nothing touches the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..corpus.prepared.packing import PackedRows
from ..models.target.hf import HFTarget, TargetStates

Key = tuple[str, int]


@dataclass(frozen=True)
class RowBatch:
    """Packed rows.

    Attributes:
        input_ids: (B, T) int64, 0 in padding.
        loss_mask: bool (B, T), True where the token is the assistant's.
        document: (B, T) document number in its row, 0 for padding.
        position: (B, T) positions, restarting at 0 in each document.
    """

    input_ids: Tensor
    loss_mask: Tensor
    document: Tensor
    position: Tensor


def to_tensors(rows: PackedRows, indices: Sequence[int], device: torch.device) -> RowBatch:
    """The named rows as tensors (B, T): int64, the loss mask bool."""
    index = np.asarray(indices)
    arrays = (rows.input_ids, rows.loss_mask, rows.document, rows.position)
    kinds = (np.int64, np.bool_, np.int64, np.int64)
    read = (torch.from_numpy(np.array(array[index], dtype=kind)) for array, kind in zip(arrays, kinds))
    return RowBatch(*(tensor.to(device) for tensor in read))


@dataclass(frozen=True)
class CapturedBatch(RowBatch):
    """Packed rows with what the target made of them.

    Attributes:
        features: (B, T, n_aux * H) auxiliary layer outputs, in the target's dtype, zeros in padding.
        hidden: (B, T, H) target hidden states as the LM head reads them, likewise.
    """

    features: Tensor
    hidden: Tensor

    def states(self, reads: Literal["aux", "hidden"]) -> Tensor:
        """What a drafter fuses: the auxiliary layers' outputs, or the final hidden states."""
        return self.features if reads == "aux" else self.hidden


class CaptureSource(Protocol):
    """Where the target's states of packed rows come from."""

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """The states of ``rows``; ``keys`` (one a row) are (split, row number)."""
        ...


class OnlineCapture:
    """Runs the target in this process and keeps in the host's memory what recurs and fits.

    Which rows share a pass decides the last bits of their states, and a resumed run must repeat them, so:

    - Row by row (the default on a CPU): a row is captured alone, and its states may be kept and mixed freely.
    - Together (the default on CUDA): all rows of a call go through the target at once. Held-out rows come in the same
      batches at every evaluation and are kept batch by batch; training batches do not recur and are not kept.

    With tensor parallelism every process computes every process's rows, in the order of ranks, and keeps its own:
    all processes must call this equally often.

    Args:
        budget_bytes: memory for kept states.
        together: None chooses by the target's device.
    """

    def __init__(self, target: HFTarget, budget_bytes: int, *, together: bool | None = None) -> None:
        self.target = target
        self._left = budget_bytes
        self._kept: dict[object, TargetStates] = {}
        self._together = target.device.type == "cuda" if together is None else together

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """Capture rows; ``keys`` (one a row) name them in memory."""
        if self.target.tensor_parallel:
            states = [self._for_all_ranks(rows)]
        elif self._together:
            keep = any(split != "train" for split, _ in keys)
            states = [self._states(rows, tuple(keys) if keep else None)]
        else:
            states = [self._states(_row(rows, index), key) for index, key in enumerate(keys)]
        device = rows.input_ids.device  # kept rows lie in the host's memory
        return CapturedBatch(
            **vars(rows),
            features=torch.cat([s.features.to(device) for s in states]),
            hidden=torch.cat([s.hidden.to(device) for s in states]),
        )

    def _states(self, rows: RowBatch, key: object) -> TargetStates:
        if key is not None and key in self._kept:
            return self._kept[key]
        states = self.target.capture(rows.input_ids, rows.position, rows.document)
        size = sum(t.numel() * t.element_size() for t in (states.features, states.hidden))
        if key is not None and size <= self._left:
            self._left -= size
            self._kept[key] = TargetStates(states.features.cpu(), states.hidden.cpu())
        return states

    def _for_all_ranks(self, rows: RowBatch) -> TargetStates:
        import torch.distributed as dist

        mine = tuple(tensor.cpu() for tensor in (rows.input_ids, rows.position, rows.document))
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, mine)
        found = None
        for rank, tensors in enumerate(everyones):
            moved = [tensor.to(self.target.device) for tensor in tensors]
            states = self.target.capture(*moved)
            if rank == dist.get_rank():
                found = states
        if found is None:
            raise RuntimeError("this process is not among the ranks of its group")
        return found


def _row(rows: RowBatch, index: int) -> RowBatch:
    one = slice(index, index + 1)
    return RowBatch(rows.input_ids[one], rows.loss_mask[one], rows.document[one], rows.position[one])
