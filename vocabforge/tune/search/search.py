"""Successive halving: every candidate on few prompts, the better half on twice as many, until all prompts are used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .acceptance import PromptRow
from .predict import Prediction
from .space import TuneCandidate

State = Literal["measured", "stopped", "not reached"]


class Ways(Protocol):
    """What a search asks of candidates."""

    def measure(self, candidate: TuneCandidate, prompts: int) -> Sequence[PromptRow]:
        """Acceptance on the first prompts."""
        ...

    def predict(self, candidate: TuneCandidate, rows: Sequence[PromptRow]) -> Mapping[int, Prediction]:
        """By batch size."""
        ...


@dataclass(frozen=True)
class Halving:
    """How a search goes.

    Attributes:
        prompts: in all.
        first: prompts of the first round; doubled from round to round.
        least: candidates that a round leaves at least.
    """

    prompts: int
    first: int = 2
    least: int = 8

    @property
    def rounds(self) -> list[int]:
        """Prompts of each round: 2, 4, 8, .. and all."""
        found, size = [], max(1, self.first)
        while size < self.prompts:
            found.append(size)
            size *= 2
        return [*found, self.prompts]


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
    ways: Ways,
    halving: Halving,
    *,
    left: Callable[[int], float] = lambda number: 1.0,
    tell: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> list[Entry]:
    """Everything about every candidate, in the order given.

    Args:
        left: seconds that may still be spent in the round of this number; at 0 no further candidate is decoded in
            that round. The first candidate is always measured on the first prompts.
        tell: called before a candidate is decoded with its number in the round, how many the round has, and a
            text.
    """
    entries = {one.name: Entry(one) for one in found}
    # Shuffled, so that a budget does not cut off one corner of the space.
    alive = random.Random(0).sample(list(found), len(found))
    for number, prompts in enumerate(halving.rounds, start=1):
        known: list[Entry] = []
        for place, candidate in enumerate(alive):
            tell(place, len(alive), f"round {number} of {len(halving.rounds)}: {candidate.name}")
            if known and left(number) <= 0:
                break
            entry = entries[candidate.name]
            entry.rows = ways.measure(candidate, prompts)
            entry.by_batch = ways.predict(candidate, entry.rows)
            entry.state = "measured" if prompts == halving.prompts else "stopped"
            known.append(entry)
        alive = [entry.candidate for entry in survivors(known, halving)]
        if left(number + 1) <= 0:
            break
    return [entries[one.name] for one in found]


def survivors(entries: Sequence[Entry], halving: Halving) -> list[Entry]:
    """Those of one round that the next one decodes, the best first.

    For each batch size the better half, and the best of each draft head, so that heads can be compared.
    """
    count = max(halving.least, (len(entries) + 1) // 2)
    batches = dict.fromkeys(batch for entry in entries for batch in entry.by_batch)
    kept: dict[str, Entry] = {}
    for batch in batches:
        order = ranked(entries, batch)
        heads: dict[str, Entry] = {}
        for entry in order:
            heads.setdefault(entry.candidate.head.name, entry)
        for entry in [*order[:count], *heads.values()]:
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
