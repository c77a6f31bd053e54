"""Exact probability: every way that random decisions can go, distributions in fractions, a second transform,
chi-square."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from vocabforge.decode.request import SamplingParams

Distribution = dict[tuple[int, ...], Fraction]
Outcome = TypeVar("Outcome")


class AllBranches:
    """A source of chance that replays a script; beyond its end it takes the first way and notes the others.

    Weights may be fractions, integers or floats; a float counts as exactly the number that it stores.

    Args:
        script: the way taken at each decision; 1 and 0 for what happens and what does not.

    Attributes:
        weight: probability of the way taken.
        open: scripts of the ways that were not taken.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.weight = list(script), Fraction(1)
        self.open: list[list[int]] = []
        self._done: list[int] = []

    def choose(self, weights: Sequence[Fraction]) -> int:
        """A branch of these probabilities, which sum to 1; one of probability 0 is never taken."""
        possible = [branch for branch, weight in enumerate(weights) if weight > 0]
        place = len(self._done)
        branch = self.script[place] if place < len(self.script) else possible[0]
        if place >= len(self.script):
            self.open += [[*self._done, other] for other in possible[1:]]
        self._done.append(branch)
        self.weight *= weights[branch]
        return branch

    def happens(self, weight: Any, total: Any) -> bool:
        p = exactly(weight) / exactly(total)
        assert 0 <= p <= 1, f"a probability of {p}"
        return self.choose([1 - p, p]) == 1

    def draw(self, weights: np.ndarray[Any, Any]) -> int:
        heights = [exactly(weight) for weight in weights]
        total = sum(heights)
        assert min(heights) >= 0 < total, f"a draw from {heights}"
        return self.choose([height / total for height in heights])


def all_ways(
    run: Callable[[AllBranches], Outcome], source: Callable[[Sequence[int]], AllBranches] = AllBranches
) -> Iterator[tuple[Fraction, Outcome]]:
    """Each way that ``run`` can go: its probability and what it gives."""
    waiting: list[list[int]] = [[]]
    while waiting:
        chance = source(waiting.pop())
        outcome = run(chance)
        waiting += chance.open
        yield chance.weight, outcome


def total_variation(first: Distribution, second: Distribution) -> float:
    """Half the sum of the differences of two distributions, summed as fractions."""
    distance = sum(
        abs(first.get(key, Fraction(0)) - second.get(key, Fraction(0))) for key in {*first, *second}
    )
    return float(distance / 2)


def fractions(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Weights as an object array of the fractions that they store."""
    return np.array([exactly(weight) for weight in weights], dtype=object)


def exactly(number: Any) -> Fraction:
    """A number as the fraction that it stores; numpy's own integers would overflow inside of one."""
    return Fraction(number.item() if isinstance(number, np.generic) else number)


LEAST_EXPECTED = 5.0  # cells of fewer expected samples are put together


def p_value(seen: Mapping[Hashable, int], distribution: Mapping[Hashable, float]) -> float:
    """Probability of a statistic at least as large, were ``distribution`` true; 0 where an impossible cell was seen."""
    count = sum(seen.values())
    if any(distribution.get(cell, 0.0) <= 0.0 for cell in seen):
        return 0.0
    cells: list[tuple[int, float]] = []
    rest_seen, rest_expected = 0, 0.0
    for cell, p in distribution.items():
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


def plain_transform(
    logits: Sequence[float], settings: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> list[float]:
    """The transform once more, token by token as its settings say it; the reference of the reference."""
    scores = []
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            logit = logit / settings.repetition_penalty if logit > 0 else logit * settings.repetition_penalty
        count = list(output).count(token)
        scores.append(logit - settings.presence_penalty * (count > 0) - settings.frequency_penalty * count)
    best = max(scores)
    if settings.temperature == 0:
        return [float(token == scores.index(best)) for token in range(len(scores))]
    parts = [math.exp((score - best) / settings.temperature) for score in scores]
    order = sorted(range(len(parts)), key=lambda token: (-parts[token], token))
    kept = order[: settings.top_k or len(order)]
    total, mass, nucleus = sum(parts[token] for token in kept), 0.0, []
    for token in kept:
        if mass >= settings.top_p * total:
            break
        nucleus.append(token)
        mass += parts[token]
    return [
        part if token in nucleus and part >= settings.min_p * parts[order[0]] else 0.0
        for token, part in enumerate(parts)
    ]
