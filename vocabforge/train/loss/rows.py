"""What the TTT loss is made of: the counted rows of all draft steps, their figures, EAGLE's feature loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...models.target.logits import LogitFacts
from ..ttt import TTTStep
from .vocab import RowLoss


@dataclass(frozen=True)
class StepFigures:
    """Sums over the counted rows of one TTT step; nothing in it carries a gradient.

    Attributes:
        loss_sum: fp32 scalar, soft cross-entropy of rows whose target argmax is in the draft vocabulary.
        rows, correct, outside: counted rows; draft argmax is the target's; target argmax outside the draft vocabulary.
        overlap_sum: fp32 scalar, sum of sum_v min(p(v), q(v)): expected acceptance at temperature 1.
        ceiling_sum: fp32 scalar, the target's mass inside the draft vocabulary.
        overlaps: fp32 (B, T), 0 if a row is not counted.
        hits, counted: bool (B, T), the correct and the counted rows.
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
    """The counted rows of all draft steps, one after the other.

    Attributes:
        g: (M, H) drafter outputs before the norm.
        step: (M,) draft step of each.
        teacher: (P, H) target hidden states at the positions that teach any of them.
        teacher_row: (M,) row of ``teacher``.
        facts: (P,) of the teachers' logits, if they were kept.
        sizes: rows of each step.
    """

    g: Tensor
    step: Tensor
    teacher: Tensor
    teacher_row: Tensor
    facts: LogitFacts | None
    sizes: tuple[int, ...]


def take_rows(steps: Sequence[TTTStep], hidden: Tensor, facts: LogitFacts | None = None) -> TakenRows:
    """Gather the counted rows of an unroll; row t of step k is taught by ``hidden`` (B, T, H) at t + 1 + k.

    ``facts``: (B, T) of the logits of ``hidden``.
    """
    length = hidden.shape[1]
    places = [step.counted.flatten().nonzero()[:, 0] for step in steps]
    sizes = tuple(len(place) for place in places)
    g = torch.cat([step.g.flatten(0, 1)[place] for step, place in zip(steps, places)])
    # A counted row's teacher lies in the same row of the batch, so flat places may be added.
    position = torch.cat([place + 1 + step.index for step, place in zip(steps, places)])
    used = torch.zeros(hidden.shape[0] * length, dtype=torch.bool, device=hidden.device)
    used[position] = True
    row = used.cumsum(0) - 1
    number = torch.repeat_interleave(
        torch.arange(len(steps), device=hidden.device), torch.tensor(sizes, device=hidden.device)
    )
    if facts is not None:
        facts = facts.map(lambda each: each.flatten()[used])
    return TakenRows(g, number, hidden.flatten(0, 1)[used], row[position], facts, sizes)


def feature_loss(taken: TakenRows, weight: Tensor) -> Tensor:
    """EAGLE's regression: weighted sum of SmoothL1(g, target hidden state), a mean over the H features."""
    target = taken.teacher[taken.teacher_row]
    distance = F.smooth_l1_loss(taken.g.float(), target.float(), reduction="none").mean(-1)  # (M,)
    return (weight * distance).sum()


def split_figures(row_loss: RowLoss, taken: TakenRows, steps: Sequence[TTTStep]) -> tuple[StepFigures, ...]:
    """Sums of each draft step from the figures of all rows."""
    sizes = list(taken.sizes)
    parts = zip(
        steps,
        row_loss.losses.split(sizes),
        row_loss.correct.split(sizes),
        row_loss.outside.split(sizes),
        row_loss.overlap.split(sizes),
        row_loss.ceiling.split(sizes),
    )
    figures = []
    for step, losses, correct, outside, overlap, ceiling in parts:
        hits = torch.zeros_like(step.counted)
        hits[step.counted] = correct
        overlaps = torch.zeros(hits.shape, dtype=overlap.dtype, device=hits.device)
        overlaps[step.counted] = overlap
        figures.append(
            StepFigures(
                loss_sum=losses.sum(),
                rows=step.counted.sum(),
                correct=correct.sum(),
                outside=outside.sum(),
                overlap_sum=overlap.sum(),
                ceiling_sum=ceiling.sum(),
                overlaps=overlaps,
                hits=hits,
                counted=step.counted,
            )
        )
    return tuple(figures)


def feature_noise(shape: torch.Size, width: float, seed: int, step: int, rows: Sequence[int]) -> Tensor:
    """EAGLE-1's uniform noise (B, T, .), +-``width`` * 512 / T, a function of seed, step and row alone."""
    drawn = []
    for row in rows:
        digest = hashlib.sha256(repr((seed, step, row)).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        drawn.append(torch.rand(shape[1:], generator=generator))
    return (torch.stack(drawn) - 0.5) * (2 * width * 512 / shape[1])
