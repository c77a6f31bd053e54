"""Figures of a drafter from the TTT unroll alone, and what they predict for the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .losses import StepFigures


@dataclass
class TTTTotals:
    """Sums over batches, one entry a TTT step.

    ``chained_rows[k]`` counts rows of step k whose earlier steps were all hits, ``chained_hits[k]`` those
    that hit at k too: their quotient is the conditional acceptance, the chance that draft token k + 1 is
    accepted given that the k before it were.
    """

    loss: list[float]
    rows: list[int]
    correct: list[int]
    outside: list[int]
    chained_rows: list[int]
    chained_hits: list[int]

    @classmethod
    def zeros(cls, steps: int) -> TTTTotals:
        return cls([0.0] * steps, *([0] * steps for _ in range(5)))

    def add(self, figures: Sequence[StepFigures], counted: Sequence[Tensor]) -> None:
        """Add one batch; ``counted`` holds bool (B, T) a step."""
        alive = torch.ones_like(counted[0])
        for k, (step, rows) in enumerate(zip(figures, counted)):
            number = int(step.rows)
            outside = int(step.outside)
            self.loss[k] += float(step.loss.detach()) * (number - outside)  # a mean over the rows inside
            self.rows[k] += number
            self.correct[k] += int(step.correct)
            self.outside[k] += outside
            self.chained_rows[k] += int((alive & rows).sum())
            alive = alive & step.hits
            self.chained_hits[k] += int((alive & rows).sum())

    def summary(self) -> dict[str, object]:
        """Mean loss, accuracy, conditional acceptance and out-of-vocabulary share a step; accepted length."""
        conditional = [_ratio(h, r) for h, r in zip(self.chained_hits, self.chained_rows)]
        return {
            "loss": [_ratio(x, r - o) for x, r, o in zip(self.loss, self.rows, self.outside)],
            "accuracy": [_ratio(c, r) for c, r in zip(self.correct, self.rows)],
            "conditional_acceptance": conditional,
            "out_of_vocabulary": [_ratio(o, r) for o, r in zip(self.outside, self.rows)],
            "chain_accepted_length": expected_accepted_length(conditional),
            "rows": self.rows[0],
        }


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def expected_accepted_length(conditional: Sequence[float]) -> float:
    """Mean tokens that verifying a chain commits, its own included: 1 + sum_k prod_{j<=k} a_j."""
    length, alive = 1.0, 1.0
    for acceptance in conditional:
        alive *= acceptance
        length += alive
    return length


def walk_chain(hits: Tensor, start: int, end: int) -> list[int]:
    """Accepted lengths of a chain drafter walking one document as the decoder does.

    A cycle rooted at row t accepts its leading hits and commits one more token, so the next root is
    t + 1 + accepted. On text that the target itself produced greedily this is exactly the decoder's course.

    Args:
        hits: bool (K, T), hits[k, t] of row t at step k.
        start: the row of the first cycle (last prompt token).
        end: rows at or beyond it start no cycle.

    Returns:
        tokens committed by each cycle, the target's own included.
    """
    leading = hits.cumprod(0).sum(0)  # (T,)
    lengths = []
    row = start
    while row < end:
        lengths.append(int(leading[row]) + 1)
        row += lengths[-1]
    return lengths
