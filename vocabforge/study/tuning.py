"""What ``tune`` would recommend on this machine, and where that stands in the study's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..decode.recipe import PLAIN
from ..evaluate.results import Figure
from ..tune.outcome import Recommendation
from ..tune.predict import Prediction
from ..tune.recommend import recommend
from ..tune.search import Entry, ranked
from ..tune.space import HeadChoice, TuneCandidate
from ..tune.types import Seconds, TreeSetting
from .joined import COLUMNS, EVERYTHING, GREEDY, MACHINE, Predicted, Row

SHARE = "share"  # the order by share of the full head's accepted length


@dataclass(frozen=True)
class Tuned:
    """A recommendation out of the study's own rows.

    Attributes:
        recommendation: as ``tune`` words it, of one request at a time.
        order: rows by predicted tokens a second on this machine, the best first.
        pick: the row that is recommended; None: plain decoding is.
        places: of the pick, from 1, in the orders by column of ``COLUMNS`` and by ``share``; columns that lack it are
            not there.
    """

    recommendation: Recommendation
    order: tuple[Row, ...]
    pick: Row | None
    places: Mapping[str, int]


def tuned(
    rows: Sequence[Row],
    trees: Mapping[str, TreeSetting],
    *,
    temperature: str = GREEDY,
    group: str = EVERYTHING,
    column: str = MACHINE,
) -> Tuned | None:
    """Rank all methods with all shapes as ``tune`` ranks candidates.

    Args:
        trees: by ``Row.shape`` (``StudyTimes.trees``).
        column: whose times count.

    Returns:
        None where nothing has a prediction.
    """
    asked = [row for row in rows if (row.temperature, row.group) == (temperature, group)]
    joined = {}
    for row in asked:
        found = row.predicted.get(column)
        if found is not None and row.shape in trees:
            entry = _entry(row, found, trees[row.shape])
            joined[entry.name] = row, entry, found
    if not joined:
        return None
    plain = next(iter(joined.values()))[2].plain
    entries = [entry for _, entry, _ in joined.values()]
    recommendation = recommend(entries, {1: _prediction(plain, plain, plain, 1.0, 1 / plain)}, 1)
    pick = None if recommendation.method == PLAIN else joined[recommendation.method][0]
    order = tuple(joined[entry.name][0] for entry in ranked(entries, 1))
    return Tuned(recommendation, order, pick, {} if pick is None else places_of(pick, asked))


def places_of(pick: Row, rows: Sequence[Row]) -> dict[str, int]:
    """Places of a row, from 1, by predicted tokens a second of each column, and by share of the accepted length.

    By share it stands among rows of its shape alone: longer trees accept more, whatever drafts.
    """
    found = {}
    for column in COLUMNS:
        own = pick.tokens_per_s(column)
        if own is not None:
            speeds = [row.tokens_per_s(column) for row in rows]
            found[column] = 1 + sum(other > own for other in speeds if other is not None)
    found[SHARE] = 1 + sum(row.share > pick.share for row in rows if row.shape == pick.shape)
    return found


def _entry(row: Row, found: Predicted, tree: TreeSetting) -> Entry:
    prediction = _prediction(found.tokens_per_s, found.low, found.high, row.accepted, found.cycle_s)
    return Entry(TuneCandidate(HeadChoice(row.key), tree), "measured", by_batch={1: prediction})


def _prediction(value: float, low: float, high: float, accepted: float, cycle: float) -> Prediction:
    rate = Figure(value=value, low=low, high=high)
    return Prediction(rate, Figure(value=accepted), Seconds(cycle, cycle, cycle), 0)
