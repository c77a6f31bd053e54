"""Drafting states: what a trained drafter is fed and makes at every step of the unroll."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..capture.online import CapturedBatch
from ..models.drafter import Drafter
from ..models.heads import DraftState
from .ttt import shift_left, unroll


@dataclass(frozen=True)
class DraftingRows:
    """The counted rows of one draft step.

    Attributes:
        state: step, tokens fed (M,), hidden states fed (M, H).
        hidden: (M, H) what the head reads.
        where: row and column of each in the batch.
        counted: bool (B, T) the same as a mask.
    """

    state: DraftState
    hidden: Tensor
    where: tuple[Tensor, ...]
    counted: Tensor


@torch.no_grad()
def drafting_rows(drafter: Drafter, batch: CapturedBatch, steps: int) -> Iterator[DraftingRows]:
    """The states of every draft step of a batch, as decoding meets them (later steps are not step 0's).

    Step k feeds x_{t+1+k} with the hidden state that step k - 1 made (``fuse(features)`` at step 0), so a
    router learns on exactly what it will read.
    """
    previous = drafter.fuse(batch.states(drafter.reads))
    for step in unroll(drafter, batch, steps):
        where = step.counted.nonzero(as_tuple=True)
        tokens = shift_left(batch.input_ids, step.index + 1)[where]
        state = DraftState(step.index, tokens, previous[where])
        yield DraftingRows(state, drafter.read(step.g[where]), where, step.counted)
        previous = step.g
