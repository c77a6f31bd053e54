"""Figures of a drafter from the TTT unroll alone, and what they predict for the decoder.

Two measures of a drafted token stand side by side. Greedy: a hit is a draft argmax equal to the target's.
At temperature 1: its chance to be accepted is the overlap sum_v min(p(v), q(v)) (Leviathan et al. 2023). What is lost
against 1 has two causes, told apart for both: the token is outside the draft vocabulary, or the drafter is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .loss.rows import StepFigures

# Rows of the table of sums; one column a TTT step.
FIELDS = (
    "loss",
    "rows",
    "correct",
    "outside",
    "chained_rows",
    "chained_hits",
    "overlap",
    "ceiling",
    "chained_chance",
    "chained_overlap",
)


@dataclass
class TTTTotals:
    """Sums over batches; vectors of several processes may be added.

    ``chained_rows[k]`` counts rows of step k whose earlier steps were all hits, ``chained_hits[k]`` those that hit at
    k too. ``chained_chance[k]`` and ``chained_overlap[k]`` are the same at temperature 1: a row counts with the product
    of its earlier overlaps.

    Attributes:
        sums: (len(FIELDS), K) float64, on the device of the figures, so that adding does not wait for it.
    """

    sums: Tensor

    @classmethod
    def zeros(cls, steps: int, device: torch.device | str = "cpu") -> TTTTotals:
        """Nothing added yet, for K steps."""
        return cls(torch.zeros(len(FIELDS), steps, dtype=torch.float64, device=device))

    @classmethod
    def from_vector(cls, vector: Tensor) -> TTTTotals:
        """Back from ``to_vector``, whatever was added to it."""
        return cls(vector.reshape(len(FIELDS), -1))

    def to_vector(self) -> Tensor:
        """(len(FIELDS) * K,) float64; the sum of two vectors is the vector of both parts' totals."""
        return self.sums.flatten()

    def add(self, figures: Sequence[StepFigures]) -> None:
        """Add one batch: the figures of its steps 0, 1, ...; fewer than K leave the later columns alone."""
        alive = torch.ones_like(figures[0].hits)  # (B, T) all earlier steps were hits
        # (B, T) product of earlier overlaps
        chance = torch.ones_like(figures[0].overlaps, dtype=torch.float64)
        columns = []
        for step in figures:
            here, before = alive & step.counted, torch.where(step.counted, chance, 0.0)
            alive = alive & step.hits
            chance = chance * step.overlaps  # 0 where the row is not counted
            values = (
                step.loss_sum.detach(),
                step.rows,
                step.correct,
                step.outside,
                here.sum(),
                (alive & step.counted).sum(),
                step.overlap_sum,
                step.ceiling_sum,
                before.sum(),
                chance.sum(),
            )
            columns.append(torch.stack([value.to(torch.float64) for value in values]))
        self.sums[:, : len(columns)] += torch.stack(columns, 1).to(self.sums.device)

    def counted(self) -> list[float]:
        """Counted rows of each step."""
        counted: list[float] = self.sums[FIELDS.index("rows")].tolist()
        return counted

    def summary(self) -> dict[str, object]:
        """The figures; lists have one entry a TTT step.

        Returns:
            ``loss``: soft cross-entropy over rows with a target in the draft vocabulary. ``accuracy``,
            ``out_of_vocabulary``, ``drafter_wrong``: shares of rows, which add up to 1. ``acceptance`` (mean overlap),
            ``lost_outside`` (1 - static ceiling), ``lost_wrong``: likewise, at temperature 1.
            ``conditional_acceptance``: greedy, given that earlier tokens were accepted. ``chain_accepted_length``:
            tokens that verifying a greedy chain of K drafts commits. ``sampled_accepted_length``: the same at
            temperature 1 from products of overlaps, an estimate (the unroll is fed the text). ``rows``: of step 0.
        """
        values = dict(zip(FIELDS, self.sums.tolist()))
        rows = values["rows"]
        conditional = _ratios(values["chained_hits"], values["chained_rows"])
        sampled = _ratios(values["chained_overlap"], values["chained_chance"])
        accuracy, outside = _ratios(values["correct"], rows), _ratios(values["outside"], rows)
        overlap, ceiling = _ratios(values["overlap"], rows), _ratios(values["ceiling"], rows)
        inside = [r - o for r, o in zip(rows, values["outside"])]
        return {
            "loss": _ratios(values["loss"], inside),
            "accuracy": accuracy,
            "conditional_acceptance": conditional,
            "out_of_vocabulary": outside,
            "drafter_wrong": [_ratio(i - c, r) for i, c, r in zip(inside, values["correct"], rows)],
            "acceptance": overlap,
            "lost_outside": [_ratio(r - c, r) for r, c in zip(rows, values["ceiling"])],
            "lost_wrong": [c - o for c, o in zip(ceiling, overlap)],
            "chain_accepted_length": expected_accepted_length(conditional),
            "sampled_accepted_length": expected_accepted_length(sampled),
            "rows": int(rows[0]),
        }


def _ratios(parts: Sequence[float], wholes: Sequence[float]) -> list[float]:
    return [_ratio(part, whole) for part, whole in zip(parts, wholes)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def expected_accepted_length(conditional: Sequence[float]) -> float:
    """Mean tokens that verifying a chain commits, its own included: 1 + sum_k prod_{j<=k} a_j."""
    length, alive = 1.0, 1.0
    for acceptance in conditional:
        alive *= acceptance
        length += alive
    return length
