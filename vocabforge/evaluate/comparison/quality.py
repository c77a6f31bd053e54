"""Right answers compared: the verdicts that the scorers wrote, and intervals of differences of shares.

Right and wrong are too coarse for the percentile bootstrap: where four answers of forty changed, all for the better,
it would call that a difference, which an exact test does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DataError
from ..intervals import Array
from ..quality.gsm8k import Z95, wilson
from ..results import Figure, MethodResults
from .runs import EvaluationRun


def verdicts_of(run: EvaluationRun, method: MethodResults) -> tuple[dict[int, bool], ...]:
    """Question id -> whether its answer is right, run by run; empty where nothing scored them.

    Raises:
        DataError: a file of verdicts that cannot be read.
    """
    quality = method.summary.quality
    return () if quality is None else tuple(read_verdicts(run.folder / file) for file in quality.files)


def read_verdicts(path: Path) -> dict[int, bool]:
    """Question id -> verdict of one file.

    Raises:
        DataError: a row that is none.
    """
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
        return {_question_id(row): bool(row["passed"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            "the verdicts on the answers cannot be read",
            got=error,
            expected="rows with question_id or task_id, and passed",
            source=path,
        ) from error


def _question_id(row: Mapping[str, Any]) -> int:
    """HumanEval's rows are the public ones: its question id is the number in the task's name."""
    if "question_id" in row:
        return int(row["question_id"])
    return int(str(row["task_id"]).rpartition("/")[2])


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
    value = float(shares[0].mean() - shares[1].mean())
    count = len(shares[0])
    if count < 2:
        return Figure(value=value)
    low, high = _paired(shares[0] - shares[1]) if paired else _unpaired(shares[0], shares[1])
    return Figure(value=value, low=low, high=high)


def _paired(differences: Array) -> tuple[float, float]:
    count = len(differences) + 2
    centre = float(differences.sum()) / count
    variance = (float((differences**2).sum()) + 2) / count - centre**2
    half = Z95 * math.sqrt(variance / count)
    return max(-1.0, centre - half), min(1.0, centre + half)


def _unpaired(first: Array, second: Array) -> tuple[float, float]:
    one, two = float(np.mean(first)), float(np.mean(second))
    (low_one, high_one), (low_two, high_two) = wilson(one, len(first)), wilson(two, len(second))
    down = math.hypot(one - low_one, high_two - two)
    up = math.hypot(high_one - one, two - low_two)
    return one - two - down, one - two + up
