"""Figures of methods of several evaluations over the same questions, and their differences.

A difference is a figure of its own: the questions are drawn with replacement, both methods are given the same
draw, and their figures are taken from each other (``intervals.py``). Runs that drew other random numbers are not
paired: each is given a draw of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ..answers import MethodRows
from ..intervals import (
    Array,
    Statistic,
    columns_of_mean,
    estimate,
    mean_of_runs,
    percentile_interval,
    ratio,
    resampled_sums,
)
from ..quality.gsm8k import rate
from ..results import Figure
from ..summary import FORMULAS, QuestionTable
from .quality import share_difference

Verdict = Literal["better", "worse", "no difference shown", "not judged"]


@dataclass(frozen=True)
class Kind:
    """How a figure is made.

    Attributes:
        statistic: sums over questions -> figure.
        pooled: over all runs at once, otherwise the mean of the runs' figures.
        more_is_better: the direction that counts as better.
        timed: whether a clock has part in it.
        title: for tables. digits: decimal places.
    """

    statistic: Statistic
    pooled: bool
    more_is_better: bool
    timed: bool
    title: str
    digits: int


QUALITY = "quality"
KINDS: dict[str, Kind] = {
    "accepted_length": Kind(*FORMULAS["accepted_length"], True, False, "accepted length", 2),
    "forwards_per_token": Kind(*FORMULAS["forwards_per_token"], False, False, "forwards/token", 3),
    "speedup": Kind(*FORMULAS["speedup"], True, True, "speed-up", 2),
    "tokens_per_s": Kind(*FORMULAS["tokens_per_s"], True, True, "tokens/s", 1),
    QUALITY: Kind(ratio, True, True, False, "right answers", 3),
}


@dataclass(frozen=True)
class MethodColumns:
    """What each question contributes to a method's figures.

    Attributes:
        columns: figure -> (Q, R, C); questions in the same order for all methods that are compared.
    """

    columns: Mapping[str, Array]

    def of(self, members: NDArray[np.bool_]) -> MethodColumns:
        """Only the questions of a mask (Q,)."""
        return MethodColumns({name: values[members] for name, values in self.columns.items()})

    def figures(self) -> dict[str, Figure]:
        """All figures with their spread over runs and intervals over questions."""
        return {
            name: _share(values)
            if name == QUALITY
            else estimate(values, KINDS[name].statistic, pooled=KINDS[name].pooled)
            for name, values in self.columns.items()
        }

    def value(self, figure: str) -> float | None:
        """One figure without its interval."""
        kind = KINDS[figure]
        values, runs = _flat(self.columns[figure], kind.pooled)
        found = float(_value(values.sum(axis=0)[None], runs, kind)[0])
        return None if np.isnan(found) else found


def question_ids(runs: Sequence[MethodRows]) -> set[int]:
    """The questions that a method answered in every one of its runs."""
    answered = [{row["question_id"] for row in rows.answers} for rows in runs]
    detailed = [{row["question_id"] for row in rows.details} for rows in runs]
    return set.intersection(*answered, *detailed)


def method_columns(
    method: Sequence[MethodRows],
    baseline: Sequence[MethodRows],
    ids: Sequence[int],
    verdicts: Sequence[Mapping[int, bool]] = (),
) -> MethodColumns:
    """Columns of one method from its rows, run by run.

    Args:
        method, baseline: rows of the same runs; they may be the same object.
        ids: the questions that count, answered in every run.
        verdicts: question id -> whether its answer is right, run by run; none where nothing scored them.
    """
    found = QuestionTable.read(ids, method, baseline).columns()
    columns = {name: found[name] for name in KINDS if name in found}
    if verdicts:
        columns[QUALITY] = columns_of_mean(_right(verdicts, ids))
    return MethodColumns(columns)


def difference(first: MethodColumns, second: MethodColumns, figure: str, *, paired: bool) -> Figure:
    """``first`` less ``second`` in one figure, with its 95% interval.

    Args:
        first, second: columns over the same questions in the same order; their numbers of runs may differ.
        paired: draw the questions once for both; otherwise once for each.

    Returns:
        no interval with fewer than two questions.
    """
    if figure == QUALITY:
        shares = [one.columns[QUALITY][..., 0] for one in (first, second)]
        return share_difference(shares[0], shares[1], paired=paired)
    kind = KINDS[figure]
    sides = [_flat(one.columns[figure], kind.pooled) for one in (first, second)]
    whole = [one.value(figure) for one in (first, second)]
    if whole[0] is None or whole[1] is None:
        return Figure()
    value = whole[0] - whole[1]
    if len(sides[0][0]) < 2:
        return Figure(value=value)
    samples = [_value(resampled_sums(values), runs, kind) for values, runs in sides]
    if not paired:
        # The draws are the same on every call and independent of each other: any other one is a new one.
        samples[1] = np.roll(samples[1], 1)
    low, high = percentile_interval(samples[0] - samples[1])
    return Figure(value=value, low=low, high=high)


def verdict_of(figure: str, found: Figure) -> Verdict:
    """A word for a difference; one that says more than "not shown" only where the interval excludes 0."""
    if found.value is None or found.low is None or found.high is None:
        return "not judged"
    if found.low <= 0 <= found.high:
        return "no difference shown"
    return "better" if (found.low > 0) == KINDS[figure].more_is_better else "worse"


def _share(columns: Array) -> Figure:
    """Right answers as the evaluation itself gives them (``quality/rate.py``)."""
    return rate([[bool(value) for value in run] for run in columns[..., 0].T])


def _right(verdicts: Sequence[Mapping[int, bool]], ids: Sequence[int]) -> Array:
    """(Q, R) of 0 and 1."""
    missing = next((number for number in ids for run in verdicts if number not in run), None)
    if missing is not None:
        raise DataError(
            "the verdicts leave out an answered question",
            got=f"none for question {missing}",
            expected="a verdict for each answered question, in every run",
            remedy="evaluate it again",
        )
    return np.array([[run[number] for run in verdicts] for number in ids], dtype=np.float64)


def _flat(columns: Array, pooled: bool) -> tuple[Array, int]:
    """(Q, R, C) -> (Q, R * C) and R; pooled ones first become one run."""
    columns = columns.sum(axis=1, keepdims=True) if pooled else columns
    return columns.reshape(len(columns), -1), columns.shape[1]


def _value(sums: Array, runs: int, kind: Kind) -> Array:
    """(B, R * C) sums -> (B,): the mean over the runs' figures."""
    figures = kind.statistic(sums.reshape(len(sums), runs, -1))  # (B, R)
    return mean_of_runs(figures)
