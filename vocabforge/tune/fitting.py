"""From measurements to a table: means over rounds, and the rest of a cycle that no part explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from .places import Place
from .records import AXES, Part, Point, Rest

Times = Mapping[int, Sequence[float]]  # by round

LOW, HIGH = 0.1, 0.9  # quantiles of the rounds' means


def point_of(times: Times, at: Mapping[str, int]) -> Point:
    """The mean of rounds' means, and how far these lie apart.

    Means, not medians: the parts of a cycle then add up to the mean cycle, which tokens a second are made of, on a busy
    machine too.

    Args:
        times: seconds by round, at least one.
        at: sizes.
    """
    rounds = [mean(seconds) for seconds in times.values() if seconds]
    low, high = map(float, np.quantile(rounds, [LOW, HIGH]))
    middle = mean(rounds)
    count = sum(map(len, times.values()))
    return Point(at=dict(at), seconds=middle, low=min(low, middle), high=max(high, middle), count=count)


def parts_of(times: Mapping[Place, Times]) -> tuple[Part, ...]:
    """Everything measured, by part and family."""
    found: dict[tuple[str, str], list[Point]] = {}
    for where, by_round in sorted(times.items()):
        at = dict(zip(AXES[where.name], where.sizes))
        found.setdefault((where.name, where.family), []).append(point_of(by_round, at))
    return tuple(
        Part(name=name, family=family, points=tuple(points)) for (name, family), points in found.items()
    )


def fit_rest(cycles: Sequence[tuple[int, int, float, float]], *, by_size: bool) -> Rest:
    """What real cycles take beside the sum of their measured parts, by least squares of relative errors.

    Args:
        cycles: (levels, batch, seconds of the parts, seconds of the real cycle), each.
        by_size: it may grow with levels and rows; else one number is fitted: what timing the parts itself took.
    """
    if not cycles:
        return Rest()
    levels, batch, parts, real = (np.array(column, dtype=np.float64) for column in zip(*cycles))
    columns = np.stack([np.ones_like(levels), levels, batch - 1], 1)  # (n, 3)
    used = [0] + [one for one in (1, 2) if by_size and len(set(columns[:, one])) > 1]
    if len(cycles) <= len(used):  # nothing would be left to tell a fit from chance
        used = [0]
    found = np.zeros(3)
    found[used] = np.linalg.lstsq(columns[:, used] / real[:, None], (real - parts) / real, rcond=None)[0]
    return Rest(per_cycle=float(found[0]), per_level=float(found[1]), per_row=float(found[2]))
