"""Successive halving: every candidate on two groups of prompts, the better half on twice as many, up to all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

from pydantic import BaseModel

from ..decode.spec import MethodSpec
from .measure import TOGETHER, Measured

FIRST = 2  # groups of the first round
LEAST = 8  # minimum number of candidates after a round


class Candidate(BaseModel):
    """A draft head with a draft tree, and its figures.

    Attributes:
        name: unique in a space and valid in file names: ``full+chain4``, ``r128+tree6x10x60``.
        state: ``measured`` on all prompts; ``stopped`` after a round; ``not reached`` within the time limit.
        measured: None if nothing was decoded.
    """

    name: str
    head: str
    method: MethodSpec
    state: Literal["measured", "stopped", "not reached"] = "not reached"
    measured: Measured | None = None

    @property
    def value(self) -> float:
        """The speed-up over plain decoding; 0 if unknown."""
        return self.measured.speedup.value or 0.0 if self.measured else 0.0


# Times candidates on the first groups of prompts and sets ``measured`` of those that were reached. The last
# argument returns the remaining seconds; None: only use existing figures.
Measure = Callable[[Sequence[Candidate], int, Callable[[], float] | None], None]


def search(
    candidates: Sequence[Candidate],
    measure: Measure,
    groups: int,
    *,
    least: int = LEAST,
    left: Callable[[int], float] = lambda number: 1.0,
    tell: Callable[[str], None] = lambda what: None,
) -> None:
    """Search the candidates and set their figures and states.

    Args:
        least: minimum number of candidates after a round.
        left: returns the remaining seconds of a round; at 0 no further candidate is decoded in that round.
            The first candidate is always measured on the first groups.
    """
    # Shuffle, so that a time limit does not cut off one corner of the space.
    alive = random.Random(0).sample(list(candidates), len(candidates))
    number, size = 1, min(FIRST, groups)
    while True:
        known: list[Candidate] = []
        for place in range(0, len(alive), TOGETHER):
            some = alive[place : place + TOGETHER]
            tell(f"{size} of {groups} groups: {some[0].name}{' …' if some[1:] else ''}")
            measure(some, size, None if known and left(number) <= 0 else partial(left, number))
            for candidate in some:
                if candidate.measured is not None:
                    whole = candidate.measured.groups == groups
                    candidate.state = "measured" if whole else "stopped"
                    known.append(candidate)
        if size == groups or left(number + 1) <= 0:
            return
        # Continue with the better half, and with the best of each draft head for comparison.
        order = ranked(known)
        half = order[: max(least, (len(order) + 1) // 2)]
        alive = list({candidate.name: candidate for candidate in [*half, *best_of_heads(order)]}.values())
        number, size = number + 1, min(2 * size, groups)


def groups_of(candidates: int, groups: int) -> int:
    """Return the number of groups that a search decodes, if one head decides."""
    size, known, total = min(FIRST, groups), 0, 0
    while True:
        total += candidates * (size - known)
        if size == groups:
            return total
        candidates = min(candidates, max(LEAST, (candidates + 1) // 2))
        known, size = size, min(2 * size, groups)


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the measured candidates by speed-up, best first."""
    known = [candidate for candidate in candidates if candidate.measured is not None]
    return sorted(known, key=lambda candidate: (-candidate.value, candidate.name))


def finalists(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates measured on the most groups by speed-up, best first."""
    order = ranked(candidates)
    most = max((candidate.measured.groups for candidate in order if candidate.measured), default=0)
    return [candidate for candidate in order if candidate.measured and candidate.measured.groups == most]


def best_of_heads(order: Iterable[Candidate]) -> list[Candidate]:
    """Return the first candidate of each draft head."""
    heads: dict[str, Candidate] = {}
    for candidate in order:
        heads.setdefault(candidate.head, candidate)
    return list(heads.values())
