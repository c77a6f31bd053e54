"""Figures of methods of several evaluations over the same questions, and their differences.

A difference is a figure of its own: the questions are drawn with replacement, both methods get the same draw, and
their figures are subtracted (``intervals.py``). Runs with other random numbers are not paired: each gets its own draw.

Right and wrong answers are too coarse for the percentile bootstrap: when four answers of forty changed, all for the
better, it would call that a difference, which an exact test does not. They have intervals of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ...core.errors import DataError
from ..quality.gsm8k import Z95, rate, wilson
from ..results.answers import MethodRows
from ..results.intervals import (
    Array,
    Statistic,
    columns_of_mean,
    estimate,
    figure_samples,
    figure_value,
    percentile_interval,
    ratio,
)
from ..results.schema import Figure
from ..results.summary import FORMULAS, QuestionTable

Verdict = Literal["better", "worse", "no difference shown", "not judged"]
# Figure -> (Q, R, C), what each question contributes in each run; questions in the same order for all methods.
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class FigureKind:
    """How a figure is made and shown.

    Attributes:
        statistic: sums over questions -> figure.
        pooled: over all runs at once, otherwise the mean of the runs' figures.
        more_is_better: the direction that counts as better.
        timed: whether it depends on a clock.
        axis: label of a chart's axis.
    """

    statistic: Statistic
    pooled: bool
    more_is_better: bool
    timed: bool
    title: str
    digits: int
    axis: str
    unit: str = ""


QUALITY = "quality"
KINDS: dict[str, FigureKind] = {
    "accepted_length": FigureKind(
        *FORMULAS["accepted_length"], True, False, "accepted length", 2, "tokens per verification"
    ),
    "forwards_per_token": FigureKind(
        *FORMULAS["forwards_per_token"], False, False, "forwards/token", 3, "target passes per new token"
    ),
    "speedup": FigureKind(*FORMULAS["speedup"], True, True, "speed-up", 2, "times plain decoding", "×"),
    "tokens_per_s": FigureKind(*FORMULAS["tokens_per_s"], True, True, "tokens/s", 1, "tokens per second"),
    QUALITY: FigureKind(ratio, True, True, False, "right answers", 3, "share of right answers"),
}


def method_columns(
    method: Sequence[MethodRows],
    baseline: Sequence[MethodRows],
    ids: Sequence[int],
    verdicts: Sequence[Mapping[int, bool]] = (),
) -> Columns:
    """Columns of one method from its rows, run by run.

    Args:
        method, baseline: rows of the same runs; they may be the same object.
        ids: the questions that count, answered in every run.
        verdicts: question id -> whether its answer is right, run by run; none if nothing was scored.

    Raises:
        DataError: the verdicts leave out a question.
    """
    found = QuestionTable.read(ids, method, baseline).columns()
    columns = {name: found[name] for name in KINDS if name in found}
    if verdicts:
        missing = next((number for number in ids for run in verdicts if number not in run), None)
        if missing is not None:
            raise DataError(
                "the verdicts leave out an answered question",
                got=f"none for question {missing}",
                expected="a verdict for each answered question, in every run",
                remedy="evaluate it again",
            )
        right = np.array([[run[number] for run in verdicts] for number in ids], dtype=np.float64)
        columns[QUALITY] = columns_of_mean(right)
    return columns


def figures_of(columns: Columns) -> dict[str, Figure]:
    """All figures with their spread over runs and intervals over questions."""
    return {
        name: rate([[bool(value) for value in run] for run in values[..., 0].T])
        if name == QUALITY
        else estimate(values, KINDS[name].statistic, pooled=KINDS[name].pooled)
        for name, values in columns.items()
    }


def value_of(columns: Columns, figure: str) -> float | None:
    """One figure without its interval."""
    return figure_value(columns[figure], KINDS[figure].statistic, pooled=KINDS[figure].pooled)


def difference(first: Columns, second: Columns, figure: str, *, paired: bool) -> Figure:
    """``first`` less ``second`` in one figure, with its 95% interval.

    Args:
        first, second: columns over the same questions in the same order; their numbers of runs may differ.
        paired: draw the questions once for both; otherwise once for each.

    Returns:
        no interval with fewer than two questions.
    """
    if figure == QUALITY:
        return share_difference(first[QUALITY][..., 0], second[QUALITY][..., 0], paired=paired)
    whole = [value_of(one, figure) for one in (first, second)]
    if whole[0] is None or whole[1] is None:
        return Figure()
    value, kind = whole[0] - whole[1], KINDS[figure]
    if len(first[figure]) < 2:
        return Figure(value=value)
    one, two = (figure_samples(side[figure], kind.statistic, pooled=kind.pooled) for side in (first, second))
    # The draws are the same on every call and independent of each other: any other one is a new one.
    low, high = percentile_interval(one - (two if paired else np.roll(two, 1)))
    return Figure(value=value, low=low, high=high)


def verdict_of(figure: str, found: Figure | None) -> Verdict:
    """A word for a difference; ``better`` and ``worse`` only if the interval excludes 0."""
    if found is None or found.value is None or found.low is None or found.high is None:
        return "not judged"
    if found.low <= 0 <= found.high:
        return "no difference shown"
    return "better" if (found.low > 0) == KINDS[figure].more_is_better else "worse"


def read_verdicts(path: Path) -> dict[int, bool]:
    """Question id -> whether its answer is right, from a scorer's file.

    Raises:
        DataError: a row that is none.
    """
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        # HumanEval's rows are the public ones: the question id is the number in the task's name.
        ids = [row.get("question_id", str(row.get("task_id", "")).rpartition("/")[2]) for row in rows]
        return {int(number): bool(row["passed"]) for number, row in zip(ids, rows, strict=True)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            "the verdicts on the answers cannot be read",
            got=error,
            expected="rows with question_id or task_id, and passed",
            source=path,
        ) from error


def share_difference(first: Array, second: Array, *, paired: bool) -> Figure:
    """Difference of two shares of right answers with its 95% interval.

    Paired: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on
    paired data" (JEBS 37, 2012): two pairs are added that differ in opposite ways. Each question counts once, with
    its mean over runs. Unpaired: Newcombe's hybrid score interval (Statistics in Medicine 17, 1998, method 10).

    Args:
        first, second: (Q, R) of 0 and 1, the same questions; their numbers of runs may differ.

    Returns:
        no interval with fewer than two questions.
    """
    shares = [values.mean(axis=1) for values in (first, second)]  # (Q,) each
    one, two = (float(share.mean()) for share in shares)
    if len(shares[0]) < 2:
        return Figure(value=one - two)
    if paired:
        apart = shares[0] - shares[1]
        count = len(apart) + 2
        centre = float(apart.sum()) / count
        half = Z95 * math.sqrt(((float((apart**2).sum()) + 2) / count - centre**2) / count)
        return Figure(value=one - two, low=max(-1.0, centre - half), high=min(1.0, centre + half))
    (low_one, high_one), (low_two, high_two) = (
        wilson(share, len(rows)) for share, rows in ((one, shares[0]), (two, shares[1]))
    )
    down, up = math.hypot(one - low_one, high_two - two), math.hypot(high_one - one, two - low_two)
    return Figure(value=one - two, low=one - two - down, high=one - two + up)
