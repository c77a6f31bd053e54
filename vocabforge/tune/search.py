"""Successive halving: every candidate on two prompts, the better half on twice as many, up to all prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol

from .measure import TOGETHER, Measured
from .space import TuneCandidate

State = Literal["measured", "stopped", "not reached"]
FIRST = 2  # prompts of the first round
LEAST = 8  # minimum number of candidates after a round


class Meter(Protocol):
    """Measures candidates."""

    def measure(
        self, candidates: Sequence[TuneCandidate], prompts: int, left: Callable[[], float] | None
    ) -> list[Mapping[int, Measured]]:
        """Return each candidate's figures on the first prompts, by batch size; empty if it was not reached.

        ``left``: remaining seconds; None: only return existing figures.
        """

    def groups(self, prompts: int) -> int:
        """Return the number of groups for this many prompts, over all batch sizes."""


@dataclass
class Entry:
    """A candidate and its measurements.

    Attributes:
        state: ``measured`` on all prompts; ``stopped`` after a round; ``not reached`` within the time limit.
        by_batch: figures by batch size; empty if nothing was decoded.
    """

    candidate: TuneCandidate
    state: State = "not reached"
    by_batch: Mapping[int, Measured] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.candidate.name

    def value(self, batch: int) -> float:
        """Return the speed-up; 0 if unknown."""
        return self.by_batch[batch].value if batch in self.by_batch else 0.0


def search(
    found: Sequence[TuneCandidate],
    meter: Meter,
    prompts: int,
    *,
    first: int = FIRST,
    least: int = LEAST,
    left: Callable[[int], float] = lambda number: 1.0,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Entry]:
    """Search the candidates; return their entries in the given order.

    Args:
        prompts: total number of prompts.
        first: number of prompts of the first round.
        least: minimum number of candidates after a round.
        left: returns the remaining seconds of a round; at 0 no further candidate is decoded in that round.
            The first candidate is always measured on the first prompts.
        tell: called with a message before candidates are decoded.
    """
    entries = {one.name: Entry(one) for one in found}
    # Shuffle, so that a time limit does not cut off one corner of the space.
    alive = random.Random(0).sample(list(found), len(found))
    number, size = 1, min(first, prompts)
    while True:
        known: list[Entry] = []
        for place in range(0, len(alive), TOGETHER):
            some = alive[place : place + TOGETHER]
            tell(f"{size} of {prompts} prompts: {some[0].name}{' …' if some[1:] else ''}")
            time = None if known and left(number) <= 0 else partial(left, number)
            for candidate, figures in zip(some, meter.measure(some, size, time)):
                entry = entries[candidate.name]
                if figures:
                    entry.by_batch = figures
                    whole = sum(one.rows for one in figures.values()) == meter.groups(prompts)
                    entry.state = "measured" if whole else "stopped"
                    known.append(entry)
        if size == prompts or left(number + 1) <= 0:
            return [entries[one.name] for one in found]
        alive = [entry.candidate for entry in _survivors(known, least)]
        number, size = number + 1, min(2 * size, prompts)


def answers_of(found: int, prompts: int, least: int = LEAST, first: int = FIRST) -> int:
    """Return the number of answers that a search decodes, if one head and batch size decide."""
    size, known, total = min(first, prompts), 0, 0
    while True:
        total += found * (size - known)
        if size == prompts:
            return total
        found = min(found, max(least, (found + 1) // 2))
        known, size = size, min(2 * size, prompts)


def _survivors(entries: Sequence[Entry], least: int) -> list[Entry]:
    """Return the better half for each batch size, and the best of each draft head for comparison."""
    count = max(least, (len(entries) + 1) // 2)
    kept: dict[str, Entry] = {}
    for batch in entries[0].by_batch:
        order = ranked(entries, batch)
        for entry in [*order[:count], *best_of_heads(order)]:
            kept.setdefault(entry.name, entry)
    return list(kept.values())


def ranked(entries: Iterable[Entry], batch: int) -> list[Entry]:
    """Return the measured entries by speed-up, best first."""
    known = [entry for entry in entries if batch in entry.by_batch]
    return sorted(known, key=lambda entry: (-entry.value(batch), entry.name))


def finalists(entries: Iterable[Entry], batch: int) -> list[Entry]:
    """Return the entries measured on the most prompts by speed-up, best first."""
    order = ranked(entries, batch)
    most = max((entry.by_batch[batch].rows for entry in order), default=0)
    return [entry for entry in order if entry.by_batch[batch].rows == most]


def best_of_heads(order: Iterable[Entry]) -> list[Entry]:
    """Return the first entry of each draft head."""
    heads: dict[str, Entry] = {}
    for entry in order:
        heads.setdefault(entry.candidate.head.name, entry)
    return list(heads.values())
