"""The TTT loss: soft cross-entropy against the target, averaged over counted rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..capture.online import CapturedBatch
from ..models.drafter import Drafter
from ..models.target import HFTarget
from .ttt import TTTStep, shift_left, unroll


@dataclass(frozen=True)
class StepFigures:
    """Sums over the counted rows of one TTT step.

    Attributes:
        loss: scalar with gradient, mean soft cross-entropy over rows that have a target in the draft
            vocabulary (all counted rows for a full vocabulary).
        rows: number of counted rows.
        correct: number of counted rows whose draft argmax is the target's argmax; a target argmax outside
            the draft vocabulary is a miss.
        outside: number of counted rows whose target argmax is outside the draft vocabulary.
        hits: bool (B, T), the correct rows.
    """

    loss: Tensor
    rows: Tensor
    correct: Tensor
    outside: Tensor
    hits: Tensor


def soft_cross_entropy(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """-sum_v softmax(target)_v log softmax(draft)_v for each row: (N, R), (N, R) -> (N,), in fp32."""
    teacher = target_logits.float().softmax(-1)
    return -(teacher * draft_logits.float().log_softmax(-1)).sum(-1)


def step_figures(
    drafter: Drafter, target: HFTarget, batch: CapturedBatch, step: TTTStep
) -> StepFigures:
    """Loss and counts of one step, over counted rows only.

    With a reduced vocabulary the teacher is renormalised over the R draft tokens; rows whose target argmax is
    outside it carry no loss but stay misses in ``correct``.
    """
    where = step.counted.nonzero(as_tuple=True)
    draft = drafter.logits(step.g[where])  # (N, R)
    with torch.no_grad():
        full = target.logits(shift_left(batch.hidden, step.index + 1)[where])  # (N, V)
        best = full.argmax(-1)
        teacher = full if draft.shape[-1] == full.shape[-1] else full[:, drafter.target_ids]
        # The first of equal maxima decides, as in decoding: equal values alone would not do.
        inside = drafter.target_ids[teacher.argmax(-1)] == best
        correct = drafter.target_ids[draft.argmax(-1)] == best
    losses = soft_cross_entropy(draft, teacher)
    loss = torch.where(inside, losses, 0.0).sum() / inside.sum().clamp(min=1)
    hits = torch.zeros_like(step.counted)
    hits[where] = correct
    return StepFigures(loss, step.counted.sum(), correct.sum(), (~inside).sum(), hits)


def ttt_loss(
    drafter: Drafter, target: HFTarget, batch: CapturedBatch, *, steps: int, decay: float
) -> tuple[Tensor, list[StepFigures]]:
    """Weighted TTT loss, sum_k w_k loss_k with w_k = decay^k (EAGLE-3's 0.8^k).

    Returns:
        the scalar loss and every step's figures.
    """
    figures = [step_figures(drafter, target, batch, step) for step in unroll(drafter, batch, steps)]
    total = torch.stack([decay**k * f.loss for k, f in enumerate(figures)]).sum()
    return total, figures
