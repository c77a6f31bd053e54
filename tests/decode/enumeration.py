"""Every way that random decisions can go, walked in rational arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

Law = dict[tuple[int, ...], Fraction]
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


def total_variation(first: Law, second: Law) -> float:
    """Half the sum of the differences of two laws, summed as fractions."""
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
