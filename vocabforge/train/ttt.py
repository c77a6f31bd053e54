"""Training-time test: the drafter unrolled K steps over all rows of a batch at once.

EAGLE-3 (Li et al. 2025). Row t, step k feeds x_{t+1+k} (teacher forced) with the hidden state of the same
row's step k - 1, and predicts x_{t+2+k}; the teacher is the target's distribution at position t+1+k. The row
counts iff the token fed and the token predicted are both the assistant's and of row t's document.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..capture.online import CapturedBatch
from ..models.drafters.interface import Drafter
from ..models.ttt.attention import TTTState


@dataclass(frozen=True)
class TTTStep:
    """One step of the unroll.

    Attributes:
        index: k, from 0.
        g: (B, T, H) drafter output before the final norm.
        counted: bool (B, T) rows that enter loss and metrics.
    """

    index: int
    g: Tensor
    counted: Tensor


def shift_left(values: Tensor, offset: int) -> Tensor:
    """(B, T, ...) -> values[:, t + offset], zeros (False) where that lies beyond the end."""
    length = values.shape[1]
    if offset >= length:
        return torch.zeros_like(values)
    padding = [0, 0] * (values.dim() - 2) + [0, offset]
    return F.pad(values[:, offset:], padding)


def counted_rows(loss_mask: Tensor, document: Tensor, step: int) -> Tensor:
    """bool (B, T): l_{t+1+k} and l_{t+2+k} hold, and both tokens are of row t's document."""
    same = (shift_left(document, step + 2) == document) & (document != 0)
    return shift_left(loss_mask, step + 1) & shift_left(loss_mask, step + 2) & same


def unroll(
    drafter: Drafter,
    batch: CapturedBatch,
    steps: int,
    *,
    noise: Tensor | None = None,
    attention: str = "auto",
    checkpointing: bool = False,
) -> Iterator[TTTStep]:
    """Yield the K steps in order; gradients flow through all of them.

    Args:
        noise: (B, T, .) added to what the drafter reads.
        attention: ``auto``, ``eager``, ``merged`` or ``flex``.
        checkpointing: keep each step's inputs only and compute it again in the backward pass.
    """
    read = batch.states(drafter.reads)
    g = drafter.fuse(read if noise is None else read + noise.to(read))
    state = TTTState(batch.document, attention)
    longest = batch.input_ids.shape[1] + steps
    drafter.ensure_positions(min(longest, drafter.config.max_position_embeddings))
    for k in range(steps):
        position = batch.position + k
        if drafter.positions is not None:
            # Rows that run past the table's end are never counted when the rows themselves fit it.
            position = position.clamp(max=drafter.positions - 1)
        ids = shift_left(batch.input_ids, k + 1)
        if checkpointing:
            g = checkpointed_step(drafter, ids, g, position, state)
        else:
            g = drafter.ttt_step(ids, g, position, state)
        yield TTTStep(k, g, counted_rows(batch.loss_mask, batch.document, k))


def rows_by_step(loss_mask: Tensor, document: Tensor, steps: int) -> Tensor:
    """Counted rows of packed rows (B, T) by draft step: (K,) fp32."""
    counts = [counted_rows(loss_mask, document, k).sum() for k in range(steps)]
    return torch.stack(counts).float()


def checkpointed_step(drafter: Drafter, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
    """``drafter.ttt_step`` that keeps g, the step's keys and its result only: the same bits.

    The drafter's step appends to its state, so each pass is given a copy; the first copy becomes the state.
    """
    if not torch.is_grad_enabled():
        return drafter.ttt_step(ids, g, position, state)
    before = _copy(state)

    def run(fed: Tensor) -> tuple[Tensor, TTTState]:
        after = _copy(before)
        return drafter.ttt_step(ids, fed, position, after), after

    out, after = checkpoint(run, g, use_reentrant=False)
    for name, value in vars(after).items():
        setattr(state, name, value)
    return out


def _copy(state: TTTState) -> TTTState:
    return dataclasses.replace(state, k=list(state.k), v=list(state.v))
