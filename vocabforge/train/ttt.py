"""Training-time test: the drafter unrolled K steps over all rows of a batch at once.

EAGLE-3 (Li et al. 2025). Row t of step k reads x_{t+1+k} (teacher forced) and the hidden state of the same
row at step k - 1, and predicts x_{t+2+k}; the teacher is the target's distribution at position t+1+k. The row
is counted iff the input token and the predicted token are both the assistant's and in row t's document.

A parallel drafter makes all drafts of a block in one pass (``models/ttt/blocks.py``). Step k is draft k of
the blocks at some anchors t, with the same teacher. It reads no token after x_{t+1}, so it is counted iff
x_{t+1} .. x_{t+2+k} are all the assistant's and in row t's document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..models.drafters.interface import Drafter
from ..models.drafters.parallel import ParallelDrafter, is_parallel
from ..models.ttt.attention import TTTState
from ..models.ttt.blocks import every_anchor
from .capture.online import CapturedBatch


@dataclass(frozen=True)
class TTTStep:
    """One step of the unroll.

    Attributes:
        index: k, from 0.
        g: (B, N, H) drafter output before the final norm.
        counted: bool (B, N) rows that enter loss and metrics.
        anchor: int64 (B, N) row t of each, -1 for padding; None: N = T, all rows in order.
    """

    index: int
    g: Tensor
    counted: Tensor
    anchor: Tensor | None = None

    def over(self, values: Tensor, length: int) -> Tensor:
        """Scatter values of the counted rows (M,) to their rows t: (B, T), 0 elsewhere."""
        made = values.new_zeros(len(self.counted), length)
        if self.anchor is None:
            made[self.counted] = values
        else:
            made[self.counted.nonzero()[:, 0], self.anchor[self.counted]] = values
        return made

    def places(self, length: int) -> Tensor:
        """Return the flat positions (M,) of the counted rows in B * T."""
        if self.anchor is None:
            return self.counted.flatten().nonzero()[:, 0]
        row = torch.arange(len(self.anchor), device=self.anchor.device)[:, None] * length
        return (row + self.anchor)[self.counted]


def shift_left(values: Tensor, offset: int) -> Tensor:
    """Shift (B, T, ...) to values[:, t + offset], filling with zeros (False) beyond the end."""
    length = values.shape[1]
    if offset >= length:
        return torch.zeros_like(values)
    padding = [0, 0] * (values.dim() - 2) + [0, offset]
    return F.pad(values[:, offset:], padding)


def counted_rows(loss_mask: Tensor, document: Tensor, step: int) -> Tensor:
    """Return bool (B, T): l_{t+1+k} and l_{t+2+k} are True, and both tokens are in row t's document."""
    same = (shift_left(document, step + 2) == document) & (document != 0)
    return shift_left(loss_mask, step + 1) & shift_left(loss_mask, step + 2) & same


def unbroken_rows(loss_mask: Tensor, document: Tensor, step: int) -> Tensor:
    """Return bool (B, T): l_{t+1} to l_{t+2+k} are True, and all these tokens are in row t's document."""
    counted = counted_rows(loss_mask, document, 0)
    for k in range(1, step + 1):
        counted = counted & counted_rows(loss_mask, document, k)
    return counted


def unroll(
    drafter: Drafter,
    batch: CapturedBatch,
    steps: int,
    *,
    noise: Tensor | None = None,
    attention: str = "auto",
    checkpointing: bool = False,
    anchors: Tensor | None = None,
) -> Iterator[TTTStep]:
    """Yield the K steps in order; gradients flow through all of them.

    Args:
        noise: (B, T, .) added to the drafter's input features.
        anchors: int64 (B, A) positions of a parallel drafter's blocks, -1 for padding; None: every position.
        attention: ``auto``, ``eager``, ``merged`` or ``flex``.
        checkpointing: store only each step's inputs and recompute the step in the backward pass.
    """
    read = batch.states(drafter.reads)
    g = drafter.fuse(read if noise is None else read + noise.to(read))
    if is_parallel(drafter):
        yield from _blocks(drafter, batch, g, steps, anchors, attention, checkpointing)
        return
    state = TTTState(batch.document, attention)
    longest = batch.input_ids.shape[1] + steps
    drafter.ensure_positions(min(longest, drafter.config.max_position_embeddings))
    for k in range(steps):
        position = batch.position + k
        if drafter.positions is not None:
            # Positions past the end of the table belong to rows that are not counted if the packed rows fit
            # it.
            position = position.clamp(max=drafter.positions - 1)
        ids = shift_left(batch.input_ids, k + 1)
        if checkpointing:
            g = checkpointed_step(drafter, ids, g, position, state)
        else:
            g = drafter.ttt_step(ids, g, position, state)
        yield TTTStep(k, g, counted_rows(batch.loss_mask, batch.document, k))


def _blocks(
    drafter: ParallelDrafter,
    batch: CapturedBatch,
    context: Tensor,
    steps: int,
    anchors: Tensor | None,
    attention: str,
    checkpointing: bool,
) -> Iterator[TTTStep]:
    places = every_anchor(batch.input_ids) if anchors is None else anchors
    longest = batch.input_ids.shape[1] + drafter.block_rows + 1
    drafter.ensure_positions(min(longest, drafter.config.max_position_embeddings))
    rest = batch.input_ids, batch.position, batch.document, places, attention
    if checkpointing and torch.is_grad_enabled():
        drafts = checkpoint(drafter.draft_blocks, context, *rest, use_reentrant=False)
    else:
        drafts = drafter.draft_blocks(context, *rest)
    unbroken = torch.ones_like(batch.loss_mask)
    for k in range(steps):
        unbroken = unbroken & counted_rows(batch.loss_mask, batch.document, k)
        if anchors is None or (k == 0 and drafter.first_everywhere):
            yield TTTStep(k, drafts[k], unbroken)
        else:
            yield TTTStep(k, drafts[k], chosen(unbroken, anchors), anchors)


def chosen(rows: Tensor, anchor: Tensor) -> Tensor:
    """Return the values of bool (B, T) at anchors (B, N), False for -1."""
    return rows.gather(1, anchor.clamp(min=0)) & (anchor >= 0)


def rows_by_step(
    loss_mask: Tensor,
    document: Tensor,
    steps: int,
    anchors: Tensor | None = None,
    *,
    first_everywhere: bool = False,
) -> Tensor:
    """Count the rows of packed rows (B, T) by draft step, (K,) fp32; with anchors for a parallel drafter."""
    counts = []
    for k in range(steps):
        if anchors is None or (k == 0 and first_everywhere):
            counts.append(counted_rows(loss_mask, document, k).sum())
        else:
            counts.append(chosen(unbroken_rows(loss_mask, document, k), anchors).sum())
    return torch.stack(counts).float()


def checkpointed_step(drafter: Drafter, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
    """Run ``drafter.ttt_step`` storing only g, the step's keys and its result; results are bitwise equal.

    The drafter's step appends to its state, so each pass gets a copy; the first copy becomes the state.
    """
    if not torch.is_grad_enabled():
        return drafter.ttt_step(ids, g, position, state)
    before = state.copy()

    def run(fed: Tensor) -> tuple[Tensor, TTTState]:
        after = before.copy()
        return drafter.ttt_step(ids, fed, position, after), after

    out, after = checkpoint(run, g, use_reentrant=False)
    for name, value in vars(after).items():
        setattr(state, name, value)
    return out
