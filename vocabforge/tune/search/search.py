"""Successive halving: every candidate on two prompts, the better half on twice as many, up to all prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .acceptance import PromptRow
from .predict import Prediction
from .space import TuneCandidate

if TYPE_CHECKING:
    from .session import Joined

State = Literal["measured", "stopped", "not reached"]
FIRST = 2  # prompts of the first round
LEAST = 8  # candidates that a round leaves at least


@dataclass
class Entry:
    """What is known of a candidate.

    Attributes:
        state: ``measured`` on all prompts; ``stopped`` after a round; ``not reached`` before the time was up.
        by_batch: prediction by batch size; empty if nothing was decoded.
    """

    candidate: TuneCandidate
    state: State = "not reached"
    rows: Sequence[PromptRow] = ()
    by_batch: Mapping[int, Prediction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.candidate.name

    def value(self, batch: int) -> float:
        """Predicted tokens a second; 0 if nothing is known."""
        return self.by_batch[batch].value if self.by_batch else 0.0


def search(
    found: Sequence[TuneCandidate],
    methods: Joined,
    prompts: int,
    *,
    least: int = LEAST,
    left: Callable[[int], float] = lambda number: 1.0,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Entry]:
    """Everything about every candidate, in the order given.

    Args:
        methods: what measures and predicts candidates.
        prompts: in all.
        least: candidates that a round leaves at least.
        left: seconds that may still be spent in the round of this number; at 0 no further candidate is decoded in
            that round. The first candidate is always measured on the first prompts.
        tell: called with a text before a candidate is decoded.
    """
    entries = {one.name: Entry(one) for one in found}
    # Shuffled, so that a budget does not cut off one corner of the space.
    alive = random.Random(0).sample(list(found), len(found))
    number, size = 1, min(FIRST, prompts)
    while True:
        known: list[Entry] = []
        for candidate in alive:
            tell(f"{size} of {prompts} prompts: {candidate.name}")
            if known and left(number) <= 0:
                break
            entry = entries[candidate.name]
            entry.rows = methods.measure(candidate, size)
            entry.by_batch = methods.predict(candidate, entry.rows)
            entry.state = "measured" if size == prompts else "stopped"
            known.append(entry)
        if size == prompts or left(number + 1) <= 0:
            return [entries[one.name] for one in found]
        alive = [entry.candidate for entry in _survivors(known, least)]
        number, size = number + 1, min(2 * size, prompts)


def answers_of(found: int, prompts: int, least: int = LEAST) -> int:
    """Answers that a search over so many candidates decodes in all, if one draft head and batch size decide."""
    size, known, total = min(FIRST, prompts), 0, 0
    while True:
        total += found * (size - known)
        if size == prompts:
            return total
        found = min(found, max(least, (found + 1) // 2))
        known, size = size, min(2 * size, prompts)


def _survivors(entries: Sequence[Entry], least: int) -> list[Entry]:
    """For each batch size the better half, and the best of each draft head, so that heads can be compared."""
    count = max(least, (len(entries) + 1) // 2)
    kept: dict[str, Entry] = {}
    for batch in entries[0].by_batch:
        order = ranked(entries, batch)
        for entry in [*order[:count], *best_of_heads(order)]:
            kept.setdefault(entry.name, entry)
    return list(kept.values())


def ranked(entries: Iterable[Entry], batch: int) -> list[Entry]:
    """By predicted tokens a second, the best first; those without a prediction are left out."""
    known = [entry for entry in entries if entry.by_batch]
    return sorted(known, key=lambda entry: (-entry.value(batch), entry.name))


def finalists(entries: Iterable[Entry], batch: int) -> list[Entry]:
    """Of those known on the most prompts, by predicted tokens a second, the best first."""
    order = ranked(entries, batch)
    most = max((len(entry.rows) for entry in order), default=0)
    return [entry for entry in order if len(entry.rows) == most]


def best_of_heads(order: Iterable[Entry]) -> list[Entry]:
    """The first of each draft head."""
    heads: dict[str, Entry] = {}
    for entry in order:
        heads.setdefault(entry.candidate.head.name, entry)
    return list(heads.values())
