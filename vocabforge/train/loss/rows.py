"""Parts of the TTT loss: counted rows of all draft steps, their figures, EAGLE's feature loss.

Random draws for a row depend only on seed, step and row, so a resumed run reproduces them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...models.target.logits import LogitFacts
from ..capture.online import CapturedBatch
from ..ttt import TTTStep, counted_rows
from .vocab import RowLoss


@dataclass(frozen=True)
class StepFigures:
    """Sums over the counted rows of one TTT step, without gradients.

    Attributes:
        loss_sum: fp32 scalar, soft cross-entropy of rows whose target argmax is in the draft vocabulary.
        rows, correct, outside: numbers of counted rows, of rows with the target's argmax, and of rows whose
            target argmax is outside the draft vocabulary.
        overlap_sum: fp32 scalar, sum of sum_v min(p(v), q(v)): expected acceptance at temperature 1.
        ceiling_sum: fp32 scalar, target mass inside the draft vocabulary.
        overlaps: fp32 (B, T), 0 for rows that are not counted.
        hits, counted: bool (B, T), correct and counted rows.
    """

    loss_sum: Tensor
    rows: Tensor
    correct: Tensor
    outside: Tensor
    overlap_sum: Tensor
    ceiling_sum: Tensor
    overlaps: Tensor
    hits: Tensor
    counted: Tensor


@dataclass(frozen=True)
class TakenRows:
    """Counted rows of all draft steps, concatenated.

    Attributes:
        g: (M, H) drafter outputs before the norm.
        step: (M,) draft step of each row.
        place: (M,) position t of each row, flat in B * T.
        teacher: (P, H) target hidden states at the positions used as teachers.
        teacher_row: (M,) row of ``teacher`` for each row.
        label: (M,) token of the data that each row predicts.
        facts: (P,) facts of the teachers' logits, if they were kept.
        sizes: number of rows of each step.
    """

    g: Tensor
    step: Tensor
    place: Tensor
    teacher: Tensor
    teacher_row: Tensor
    label: Tensor
    facts: LogitFacts | None
    sizes: tuple[int, ...]


def take_rows(steps: Sequence[TTTStep], batch: CapturedBatch) -> TakenRows:
    """Gather the counted rows of an unroll: row t of step k has teacher t + 1 + k and label t + 2 + k."""
    hidden, facts = batch.hidden, batch.facts
    length = hidden.shape[1]
    places = [step.places(length) for step in steps]
    sizes = tuple(len(place) for place in places)
    g = torch.cat([step.g[step.counted] for step in steps])
    # A counted row's teacher and label are in the same row of the batch, so flat positions can be added.
    position = torch.cat([place + 1 + step.index for step, place in zip(steps, places)])
    used = torch.zeros(hidden.shape[0] * length, dtype=torch.bool, device=hidden.device)
    used[position] = True
    row = used.cumsum(0) - 1
    number = torch.repeat_interleave(
        torch.arange(len(steps), device=hidden.device), torch.tensor(sizes, device=hidden.device)
    )
    if facts is not None:
        facts = facts.map(lambda each: each.flatten()[used])
    label = batch.input_ids.flatten()[position + 1]
    return TakenRows(
        g, number, torch.cat(places), hidden.flatten(0, 1)[used], row[position], label, facts, sizes
    )


def feature_loss(taken: TakenRows, weight: Tensor) -> Tensor:
    """Compute EAGLE's regression loss: weighted sum of SmoothL1(g, target hidden state), mean over H."""
    target = taken.teacher[taken.teacher_row]
    distance = F.smooth_l1_loss(taken.g.float(), target.float(), reduction="none").mean(-1)  # (M,)
    return (weight * distance).sum()


def confidence_loss(confidence: Tensor, row_loss: RowLoss, weight: Tensor) -> Tensor:
    """Compute the weighted cross-entropy of confidence logits (M,) with acceptance probabilities (DSpark)."""
    losses = F.binary_cross_entropy_with_logits(
        confidence.float(), row_loss.overlap.clamp(0.0, 1.0), reduction="none"
    )
    return (weight * losses).sum()


def split_figures(
    row_loss: RowLoss, taken: TakenRows, steps: Sequence[TTTStep], length: int
) -> tuple[StepFigures, ...]:
    """Split the figures of all rows into sums for each draft step; ``length`` is T."""
    names = ("losses", "correct", "outside", "overlap", "ceiling")
    parts = (getattr(row_loss, name).split(list(taken.sizes)) for name in names)
    return tuple(
        StepFigures(
            loss_sum=losses.sum(),
            rows=step.counted.sum(),
            correct=correct.sum(),
            outside=outside.sum(),
            overlap_sum=overlap.sum(),
            ceiling_sum=ceiling.sum(),
            overlaps=step.over(overlap, length),
            hits=step.over(correct, length),
            counted=step.over(torch.ones_like(correct), length),
        )
        for step, losses, correct, outside, overlap, ceiling in zip(steps, *parts)
    )


def _draws_of(seed: int, step: int, row: int) -> torch.Generator:
    digest = hashlib.sha256(repr((seed, step, row)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def feature_noise(shape: torch.Size, width: float, seed: int, step: int, rows: Sequence[int]) -> Tensor:
    """Draw EAGLE-1's uniform noise (B, T, .) in +-``width`` * 512 / T."""
    drawn = [torch.rand(shape[1:], generator=_draws_of(seed, step, row)) for row in rows]
    return (torch.stack(drawn) - 0.5) * (2 * width * 512 / shape[1])


# Used instead of a step number: held-out figures always use the same blocks.
HELDOUT = -1


def draw_anchors(
    loss_mask: Tensor, document: Tensor, rows: Sequence[int], most: int, seed: int, step: int
) -> Tensor:
    """Draw the blocks of a step: up to ``most`` positions per packed row (B, T) whose first draft is counted.

    Args:
        rows: row numbers in the data.
        most: maximum number of positions per row.

    Returns:
        int64 (B, A) positions, padded with -1; A is at least 1, so that every parameter takes part in every
        pass.
    """
    anchors = []
    for row, number in zip(counted_rows(loss_mask, document, 0).cpu(), rows):
        places = row.nonzero()[:, 0]
        anchors.append(places[torch.randperm(len(places), generator=_draws_of(seed, step, number))[:most]])
    anchors[0] = anchors[0] if any(map(len, anchors)) else torch.tensor([-1])
    padded = torch.nn.utils.rnn.pad_sequence(anchors, batch_first=True, padding_value=-1)
    return padded.to(loss_mask.device)
