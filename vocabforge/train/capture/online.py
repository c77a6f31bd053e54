"""Online capture: the target runs in the training process; nothing is written to disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ...corpus.prepared.packing import PackedRows
from ...models.target.hf import HFTarget, TargetStates
from ...models.target.logits import LogitFacts

Key = tuple[str, int]


@dataclass(frozen=True)
class RowBatch:
    """Packed rows.

    Attributes:
        input_ids: (B, T) int64, 0 in padding.
        loss_mask: bool (B, T), True for tokens of the assistant.
        document: (B, T) document number in its row, 0 for padding.
        position: (B, T) positions, restarting at 0 in each document.
    """

    input_ids: Tensor
    loss_mask: Tensor
    document: Tensor
    position: Tensor


def to_tensors(rows: PackedRows, indices: Sequence[int], device: torch.device) -> RowBatch:
    """Return the rows ``indices`` as tensors (B, T): int64, with a bool loss mask."""
    index = np.asarray(indices)
    arrays = (rows.input_ids, rows.loss_mask, rows.document, rows.position)
    kinds = (np.int64, np.bool_, np.int64, np.int64)
    read = (torch.from_numpy(np.array(array[index], dtype=kind)) for array, kind in zip(arrays, kinds))
    return RowBatch(*(tensor.to(device) for tensor in read))


@dataclass(frozen=True)
class CapturedBatch(RowBatch):
    """Packed rows with the target's states.

    Attributes:
        features: (B, T, n_aux * H) auxiliary layer outputs, in the target's dtype, zeros in padding.
        hidden: (B, T, H) final hidden states (input of the LM head), in the target's dtype, zeros in padding.
        facts: (B, T) facts of the logits of ``hidden`` over all V tokens, if they were kept.
    """

    features: Tensor
    hidden: Tensor
    facts: LogitFacts | None = None

    def states(self, reads: Literal["aux", "hidden"]) -> Tensor:
        """Return the states that a drafter fuses: auxiliary layer outputs or final hidden states."""
        return self.features if reads == "aux" else self.hidden


class CaptureSource(Protocol):
    """Source of the target's states for packed rows."""

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """Return the states of ``rows``; ``keys`` are the (split, row number) of each row."""
        ...


class OnlineCapture:
    """Runs the target in this process and keeps repeated states in host memory, as far as they fit.

    The rows that share a forward pass affect the last bits of their states, which a resumed run must
    reproduce:

    - Row by row (default on a CPU): rows are captured separately, and their states can be kept and mixed
      freely.
    - Together (default on CUDA): all rows of a call go through the target at once. Held-out rows form the
      same batches at every evaluation and are kept per batch; training batches do not recur and are not kept.

    With tensor parallelism every process computes the rows of all processes in rank order and keeps its own,
    so all processes must make the same number of calls.

    Args:
        budget_bytes: memory for kept states.
        together: None chooses by the target's device.
        facts: for states that may be kept, also compute the logit facts of positions used in training.
    """

    def __init__(
        self, target: HFTarget, budget_bytes: int, *, together: bool | None = None, facts: bool = False
    ) -> None:
        self.target = target
        self._facts = facts
        self._left = budget_bytes
        self._kept: dict[object, TargetStates] = {}
        self._together = target.device.type == "cuda" if together is None else together

    @property
    def keeps_rows(self) -> bool:
        """Whether states of training rows are kept for the next epoch, as far as they fit."""
        return not self._together

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        if self.target.tensor_parallel:
            states = [self._for_all_ranks(rows)]
        elif self._together:
            keep = any(split != "train" for split, _ in keys)
            states = [self._states(rows, tuple(keys) if keep else None)]
        else:
            states = [self._states(_row(rows, index), key) for index, key in enumerate(keys)]
        device = rows.input_ids.device  # kept rows are in host memory
        facts = [s.facts.map(lambda each: each.to(device)) for s in states if s.facts is not None]
        return CapturedBatch(
            **vars(rows),
            features=torch.cat([s.features.to(device) for s in states]),
            hidden=torch.cat([s.hidden.to(device) for s in states]),
            facts=LogitFacts(torch.cat([f.best for f in facts]), torch.cat([f.log_sum for f in facts]))
            if facts
            else None,
        )

    def _states(self, rows: RowBatch, key: object) -> TargetStates:
        if key is not None and key in self._kept:
            return self._kept[key]
        states = self.target.capture(rows.input_ids, rows.position, rows.document)
        if key is not None and self._facts:
            states = replace(states, facts=_facts(self.target, states.hidden, rows))
        tensors = [states.features, states.hidden, *(vars(states.facts).values() if states.facts else ())]
        size = sum(t.numel() * t.element_size() for t in tensors)
        if key is not None and size <= self._left:
            self._left -= size
            facts = states.facts and states.facts.map(Tensor.cpu)
            self._kept[key] = TargetStates(states.features.cpu(), states.hidden.cpu(), facts)
        return states

    def _for_all_ranks(self, rows: RowBatch) -> TargetStates:
        import torch.distributed as dist

        mine = tuple(tensor.cpu() for tensor in (rows.input_ids, rows.position, rows.document))
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, mine)
        own = None
        for rank, tensors in enumerate(everyones):
            states = self.target.capture(*(tensor.to(self.target.device) for tensor in tensors))
            own = states if rank == dist.get_rank() else own
        assert own is not None
        return own


def _facts(target: HFTarget, hidden: Tensor, rows: RowBatch) -> LogitFacts:
    """Compute logit facts (B, T) at positions used in training: token and next token are the assistant's."""
    learnt, document = rows.loss_mask & (rows.document != 0), rows.document
    teaches = torch.zeros_like(learnt)
    teaches[:, :-1] = learnt[:, :-1] & learnt[:, 1:] & (document[:, :-1] == document[:, 1:])
    facts = LogitFacts.of(hidden[teaches], target.head_weight, target.transform)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(teaches.shape).masked_scatter(teaches.to(values.device), values)

    return facts.map(spread)


def _row(rows: RowBatch, index: int) -> RowBatch:
    place = slice(index, index + 1)
    return RowBatch(rows.input_ids[place], rows.loss_mask[place], rows.document[place], rows.position[place])
