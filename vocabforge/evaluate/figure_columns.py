"""What each question contributes to a method's figures, run by run, read from its rows.

A figure is a statistic of the columns' sums over questions (``intervals.py``), so that the same columns serve for one
evaluation (``summary.py``) and for several (``comparison/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .answers import MethodRows
from .intervals import Array, Statistic, columns_of_mean, ratio, ratio_of_ratios

Choice = Mapping[str, Any]

# Figure -> its statistic of the columns' sums, and whether the sums go over all runs at once.
FORMULAS: dict[str, tuple[Statistic, bool]] = {
    "accepted_length": (ratio, True),
    "tokens_per_s": (ratio, False),
    "speedup": (ratio_of_ratios, False),
    "speedup_retokenised": (ratio_of_ratios, False),
    "seconds_per_step": (ratio, False),
    "forwards_per_token": (ratio, True),
}


@dataclass(frozen=True)
class QuestionTable:
    """Sums of one method over the turns of each question in each run, all (Q, R).

    Attributes:
        new_tokens, wall: tokens and seconds.
        lengths, steps: sum and number of accepted lengths.
        decoding_steps: the sum of that field of the answer rows.
        forwards: passes of the target.
        base_speed: tokens/s of the baseline; NaN where no time passed.
        base_wall: seconds of the baseline.
    """

    new_tokens: Array
    wall: Array
    lengths: Array
    steps: Array
    decoding_steps: Array
    forwards: Array
    base_speed: Array
    base_wall: Array

    @classmethod
    def read(
        cls, ids: Sequence[int], runs: Sequence[MethodRows], baseline: Sequence[MethodRows]
    ) -> QuestionTable:
        """The questions ``ids``, in this order, from the rows of the same runs of a method and its baseline."""

        def answers(of: Sequence[MethodRows], number: Callable[[Choice], float]) -> Array:
            return _table(ids, [run.answers for run in of], number)

        base_wall = answers(baseline, _wall)
        return cls(
            new_tokens=answers(runs, _new_tokens),
            wall=answers(runs, _wall),
            lengths=answers(runs, lambda choice: sum(choice["accept_lengths"])),
            steps=answers(runs, lambda choice: len(choice["accept_lengths"])),
            decoding_steps=answers(runs, lambda choice: sum(choice["decoding_steps"])),
            forwards=_table(
                ids, [run.details for run in runs], lambda choice: sum(choice["target_forwards"])
            ),
            base_speed=quotient(answers(baseline, _new_tokens), base_wall),
            base_wall=base_wall,
        )

    def columns(self) -> dict[str, Array]:
        """Figure -> (Q, R, C), what its statistic needs the sums of; not of ``speedup_retokenised``."""
        speed = columns_of_mean(quotient(self.new_tokens, self.wall))
        return {
            "accepted_length": np.stack([self.lengths, self.steps], axis=-1),
            "tokens_per_s": speed,
            "speedup": np.concatenate([speed, columns_of_mean(self.base_speed)], axis=-1),
            "seconds_per_step": columns_of_mean(quotient(self.wall, self.decoding_steps)),
            "forwards_per_token": np.stack([self.forwards, self.new_tokens], axis=-1),
        }


def quotient(numerator: Array, denominator: Array) -> Array:
    """(Q, R) quotients, NaN where there is nothing to divide by."""
    return ratio(np.stack([numerator, denominator], axis=-1))


def _table(
    ids: Sequence[int], runs: Sequence[Sequence[Mapping[str, Any]]], number: Callable[[Choice], float]
) -> Array:
    by_id = [{row["question_id"]: row["choices"][0] for row in rows} for rows in runs]
    values = np.array([[number(run[one]) for run in by_id] for one in ids], dtype=np.float64)
    return values.reshape(len(ids), len(runs))


def _new_tokens(choice: Choice) -> float:
    return float(sum(choice["new_tokens"]))


def _wall(choice: Choice) -> float:
    return float(sum(choice["wall_time"]))
