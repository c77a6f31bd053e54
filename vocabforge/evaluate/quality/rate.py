"""A share of right answers and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ..results import Figure

Z95 = 1.959963984540054  # 97.5% quantile of the normal distribution
INTERVAL = "95% Wilson score interval over questions; further runs of a question do not narrow it"


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval (JASA 22, 1927) of a share seen in ``count`` independent trials.

    Unlike a bootstrap, it is not empty where all or none are right.
    """
    centre = share + Z95**2 / (2 * count)
    half = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def rate(verdicts: Sequence[Sequence[bool]]) -> Figure:
    """The share of right answers.

    Args:
        verdicts: (runs, questions), each run over the same questions.

    Returns:
        The mean over runs, the standard deviation over runs (ddof 1), the interval over questions (none of fewer than
        two).
    """
    questions = len(verdicts[0]) if verdicts else 0
    if questions == 0:
        return Figure()
    shares = [sum(run) / questions for run in verdicts]
    value = statistics.fmean(shares)
    low, high = wilson(value, questions) if questions > 1 else (None, None)
    return Figure(value=value, sd=statistics.stdev(shares) if len(shares) > 1 else None, low=low, high=high)
