"""Successive halving: every candidate on few prompts, the better half on twice as many, until all prompts are used.

What cannot win is not decoded at all: its cycle takes so long that even drafts accepted down to the last level would
give fewer tokens a second than the best measured on the same prompts is sure of. A few prompts that happen to suit the
best must not shut out the others, so it counts with the lower end of its accepted length's interval over prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .acceptance import PromptRow
from .predict import Prediction
from .space import Candidate, spread

State = Literal["measured", "stopped", "cannot win", "not reached"]


class Ways(Protocol):
    """What a search asks of candidates."""

    def measure(self, candidate: Candidate, prompts: int) -> Sequence[PromptRow]:
        """Acceptance on the first prompts."""
        ...

    def predict(self, candidate: Candidate, rows: Sequence[PromptRow]) -> Mapping[int, Prediction]:
        """By batch size."""
        ...

    def bound(self, candidate: Candidate, prompts: int) -> Mapping[int, float]:
        """Tokens a second by batch size that no acceptance exceeds, on the first prompts."""
        ...


@dataclass(frozen=True)
class Halving:
    """How a search goes.

    Attributes:
        prompts: in all.
        first: prompts of the first round; doubled from round to round.
        share: of the candidates that a round leaves.
        least: candidates that it leaves at least.
    """

    prompts: int
    first: int = 2
    share: float = 0.5
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
        state: ``measured`` on all prompts; ``stopped`` after a round; ``cannot win``: not decoded; ``not reached``
            before the time was up.
        by_batch: prediction by batch size; empty where nothing was decoded.
        bound: tokens a second by batch size that its drafts could reach at most, where it was asked.
    """

    candidate: Candidate
    state: State = "not reached"
    rows: Sequence[PromptRow] = ()
    by_batch: Mapping[int, Prediction] = field(default_factory=dict)
    bound: Mapping[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.candidate.name

    def value(self, batch: int) -> float:
        """Predicted tokens a second; 0 where nothing is known."""
        return self.by_batch[batch].value if self.by_batch else 0.0


def search(
    found: Sequence[Candidate],
    ways: Ways,
    halving: Halving,
    *,
    left: Callable[[int], float] = lambda number: 1.0,
    tell: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> list[Entry]:
    """Everything about every candidate, in the order given.

    Args:
        left: seconds that may still be spent in the round of this number; at 0 what is being decoded is finished and no
            more is begun in that round. The first candidate is always measured on the first prompts.
        tell: called before a candidate is decoded with its number in the round, how many the round has, and a
            text.
    """
    entries = {one.name: Entry(one) for one in found}
    alive = spread(found)
    for number, prompts in enumerate(halving.rounds, start=1):
        last = prompts == halving.prompts
        best: dict[int, float] = {}
        for place, candidate in enumerate(alive):
            entry = entries[candidate.name]
            tell(place, len(alive), f"round {number} of {len(halving.rounds)}: {candidate.name}")
            if number == 1:
                entry.bound = ways.bound(candidate, prompts)
                if best and all(entry.bound[batch] < value for batch, value in best.items()):
                    entry.state = "cannot win"
                    continue
            if left(number) <= 0 and best:
                continue
            entry.rows = ways.measure(candidate, prompts)
            entry.by_batch = ways.predict(candidate, entry.rows)
            entry.state = "measured" if last else "stopped"
            for batch, prediction in entry.by_batch.items():
                best[batch] = max(best.get(batch, 0.0), _sure_of(prediction))
        known = [entries[one.name] for one in alive if len(entries[one.name].rows) == prompts]
        alive = [entry.candidate for entry in survivors(known, halving)]
        if left(number + 1) <= 0:
            break
    return [entries[one.name] for one in found]


def _sure_of(prediction: Prediction) -> float:
    """Tokens a second at the lower end of the accepted length; errors of the seconds are shared by all ways."""
    accepted = prediction.accepted
    if not accepted.value or accepted.low is None:
        return prediction.value
    return prediction.value * accepted.low / accepted.value


def survivors(entries: Sequence[Entry], halving: Halving) -> list[Entry]:
    """Those of one round that the next one decodes, the best first.

    For each batch size the better half, and the best of each draft head, so that heads can be compared.
    """
    count = max(halving.least, int(len(entries) * halving.share + 0.5))
    batches = {batch: None for entry in entries for batch in entry.by_batch}
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
