"""Figures of a drafter from the TTT unroll, and predictions for the decoder.

There are two measures of a drafted token. Greedy: a hit is a draft argmax equal to the target's. At
temperature 1: the acceptance probability is the overlap sum_v min(p(v), q(v)) (Leviathan et al. 2023). For
both, misses are split by cause: the token is outside the draft vocabulary, or the drafter is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .loss.rows import StepFigures

# Rows of the table of sums; one column per TTT step.
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
    """Sums over batches; those of several processes can be added.

    ``chained_rows[k]`` counts rows of step k whose earlier steps were all hits, ``chained_hits[k]`` those of
    them that also hit at step k. ``chained_chance[k]`` and ``chained_overlap[k]`` are the same at temperature
    1, with rows weighted by the product of their earlier overlaps.

    Attributes:
        sums: (len(FIELDS), K) float64, on the device of the figures to avoid synchronisation.
    """

    sums: Tensor

    @classmethod
    def zeros(cls, steps: int, device: torch.device | str = "cpu") -> TTTTotals:
        """Create empty totals for K steps."""
        return cls(torch.zeros(len(FIELDS), steps, dtype=torch.float64, device=device))

    def add(self, figures: Sequence[StepFigures]) -> None:
        """Add the figures of one batch for steps 0, 1, ...; missing steps leave their columns unchanged."""
        alive = torch.ones_like(figures[0].hits)  # (B, T) all earlier steps were hits
        # (B, T) product of earlier overlaps
        chance = torch.ones_like(figures[0].overlaps, dtype=torch.float64)
        columns = []
        for step in figures:
            here, before = alive & step.counted, torch.where(step.counted, chance, 0.0)
            alive = alive & step.hits
            chance = chance * step.overlaps  # 0 if the row is not counted
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
        """Return the number of counted rows of each step."""
        counted: list[float] = self.sums[FIELDS.index("rows")].tolist()
        return counted

    def summary(self) -> dict[str, object]:
        """Return the figures; lists have one entry per TTT step.

        Returns:
            ``loss``: soft cross-entropy over rows with a target in the draft vocabulary. ``accuracy``,
            ``out_of_vocabulary``, ``drafter_wrong``: fractions of rows that add up to 1. ``acceptance`` (mean
            overlap), ``lost_outside`` (1 - static ceiling), ``lost_wrong``: the same at temperature 1.
            ``conditional_acceptance``: greedy, given that earlier tokens were accepted.
            ``chain_accepted_length``: tokens committed by verifying a greedy chain of K drafts.
            ``sampled_accepted_length``: the same at temperature 1, estimated from products of overlaps (the
            unroll reads the text). ``rows``: rows of step 0.
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
    """Return the expected tokens per verification of a chain, 1 + sum_k prod_{j<=k} a_j."""
    length, alive = 1.0, 1.0
    for acceptance in conditional:
        alive *= acceptance
        length += alive
    return length
