"""Pearson's chi-square test and Holm's correction, without a statistics package."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

LEAST_EXPECTED = 5.0  # cells of fewer expected samples are put together


def p_value(seen: Mapping[Hashable, int], law: Mapping[Hashable, float]) -> float:
    """Probability of a statistic at least as large, were ``law`` true; 0 where an impossible cell was seen."""
    count = sum(seen.values())
    if any(law.get(cell, 0.0) <= 0.0 for cell in seen):
        return 0.0
    cells: list[tuple[int, float]] = []
    rest_seen, rest_expected = 0, 0.0
    for cell, p in law.items():
        if p * count >= LEAST_EXPECTED:
            cells.append((seen.get(cell, 0), p * count))
        else:
            rest_seen, rest_expected = rest_seen + seen.get(cell, 0), rest_expected + p * count
    if rest_expected >= LEAST_EXPECTED or not cells:
        cells.append((rest_seen, rest_expected))
    else:
        most = max(range(len(cells)), key=lambda i: cells[i][1])
        cells[most] = (cells[most][0] + rest_seen, cells[most][1] + rest_expected)
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in cells)
    return upper_tail(statistic, len(cells) - 1)


def upper_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with ``freedom`` degrees > statistic): the regularised upper incomplete gamma function Q(a, x).

    Series and continued fraction (Abramowitz and Stegun 6.5.29 and 6.5.31).
    """
    if freedom == 0 or statistic <= 0.0:
        return 1.0
    a, x = freedom / 2, statistic / 2
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        for n in range(1, 1000):
            term *= x / (a + n)
            total += term
            if term < total * 1e-16:
                break
        return max(0.0, 1 - scale * total)
    b = x + 1 - a  # Lentz's method
    c, d = 1e300, 1 / b
    fraction = d
    for n in range(1, 1000):
        b += 2
        factor = -n * (n - a)
        d = 1 / (factor * d + b)
        c = b + factor / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * fraction


def holm_rejections(values: Sequence[float], level: float) -> list[int]:
    """Which hypotheses fall at a family-wise level (Holm 1979: the smallest against level / m, and so on)."""
    rejected = []
    for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[index] > level / (len(values) - place):
            break
        rejected.append(index)
    return rejected
