"""``tune.json``: figures, the recommendation and remarks; tables and sentences for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ..core.config import StrictModel
from ..core.console import DataTable
from ..decode.build.recipe import PLAIN
from ..evaluate.reports.tables import figure_cell, number
from ..evaluate.results.schema import Figure
from .search import Candidate, best_of_heads, finalists

TUNE = "tune.json"
RECIPE = "recipe.yaml"
SCHEMA_VERSION = 3
ONE = Figure(value=1.0, low=1.0, high=1.0)
_SHOWN = 12  # maximum number of methods in the table; tune.json has all


class Recommendation(StrictModel):
    """The method to use.

    Attributes:
        speedup: ratio to plain decoding.
        why: reasons, one sentence each.
        others: the best method of each other draft head and this head's next tree, best first.
    """

    method: str
    speedup: Figure
    why: list[str]
    others: list[str]


class TuneResults(StrictModel):
    """Content of ``tune.json``.

    Attributes:
        prompts: maximum number ``measured``, and number ``left_out`` as too long.
        plain: tokens/s of plain decoding over all turns.
        remarks: warnings, such as a time limit reached or outputs that differ.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    command: list[str]
    target: str
    drafter: str
    environment: dict[str, Any]
    inputs: dict[str, str]
    settings: dict[str, Any]
    prompts: dict[str, int]
    plain: float | None
    candidates: list[Candidate]
    recommendation: Recommendation
    remarks: list[str]


def plain_rate(candidates: Sequence[Candidate]) -> float | None:
    """Return the tokens/s of plain decoding over the turns of all candidates."""
    rates = [candidate.measured.plain.value for candidate in candidates if candidate.measured is not None]
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def remarks_of(candidates: Sequence[Candidate], left_out: int, *, late: bool) -> list[str]:
    """Return warnings; ``late``: whether the time limit was reached."""
    remarks = []
    if late:
        states = [candidate.state for candidate in candidates]
        remarks.append(
            f"The time for measuring was up: {states.count('measured')} of {len(states)} methods are known on all "
            f"prompts, {states.count('not reached')} on none. The same command with more --seconds continues."
        )
    if different := [
        candidate.name for candidate in candidates if candidate.measured and candidate.measured.different
    ]:
        remarks.append(
            f"{len(different)} methods gave another output than plain decoding, first {different[0]}: run eval with "
            "the recipe, which distinguishes a tie within rounding from a fault."
        )
    if left_out:
        remarks.append(f"{left_out} questions were left out: too long for the target.")
    return remarks


def recommend(candidates: Sequence[Candidate]) -> Recommendation:
    """Return the fastest method: a candidate measured on the most prompts, or plain decoding."""
    order = finalists(candidates)
    others = best_of_heads(order)
    speedups = {candidate.name: candidate.measured.speedup for candidate in order if candidate.measured}
    best, won = PLAIN, ONE
    if order and order[0].value > 1:
        first = order[0]
        best, won = first.name, speedups[first.name]
        same = [candidate for candidate in order[1:] if candidate.head == first.head][:1]
        others = sorted([*same, *others[1:]], key=lambda candidate: -candidate.value)
        why = []
    elif order and not any(_overlap(speedup, ONE) for speedup in speedups.values()):
        why = [
            "Plain decoding is faster than every draft head and tree of the last round: do without the drafter."
        ]
    else:
        why = ["No draft head and tree is faster than plain decoding."]
    if best == PLAIN and order:
        why.append(f"The best of them, {order[0].name}, is {order[0].value:.2f} times as fast.")
    rivals = {PLAIN: ONE} | {
        candidate.name: speedups[candidate.name] for candidate in (others if best != PLAIN else order)
    }
    if close := [name for name, speedup in rivals.items() if name != best and _overlap(speedup, won)]:
        more = f" and {len(close) - 4} more" if close[4:] else ""
        why.append(f"The intervals do not distinguish it from {', '.join(close[:4])}{more}.")
    return Recommendation(method=best, speedup=won, why=why, others=[candidate.name for candidate in others])


def _overlap(*figures: Figure) -> bool:
    """Return whether intervals overlap; a figure without an interval counts as a point."""
    low = [figure.value if figure.low is None else figure.low for figure in figures]
    high = [figure.value if figure.high is None else figure.high for figure in figures]
    return max(value or 0.0 for value in low) <= min(value or 0.0 for value in high)


def methods_table(results: TuneResults) -> DataTable:
    """Return the best methods, by prompts measured and speed-up, plain decoding last."""
    known = [
        (candidate.name, candidate.measured)
        for candidate in results.candidates
        if candidate.measured is not None
    ]
    known.sort(key=lambda pair: (-pair[1].groups, -(pair[1].speedup.value or 0.0)))
    cells: list[list[object]] = [
        [
            name,
            figure_cell(measured.speedup),
            number(measured.tokens_per_s.value, 1),
            figure_cell(measured.accepted),
            measured.groups,
        ]
        for name, measured in known[:_SHOWN]
    ]
    cells.append([PLAIN, "1.00", number(results.plain, 1), "1.00", None])
    more = "" if len(known) <= _SHOWN else f" {len(known) - _SHOWN} more are in tune.json."
    return DataTable(
        "Speed-up over plain decoding",
        ("method<", "speed-up", "tokens/s", "tokens a cycle", "groups"),
        cells,
        "Each method is timed in turns with plain decoding. Fewer groups of prompts: the search stopped there."
        + more,
    )


def headline(recommendation: Recommendation) -> str:
    """Return the recommendation in a sentence."""
    if recommendation.method == PLAIN:
        return f"Recommended: plain decoding. {' '.join(recommendation.why)}"
    rate = figure_cell(recommendation.speedup)
    interval = f" [{rate.under}]" if rate.under else ""
    sentence = f"Recommended: {recommendation.method}, {rate.text}{interval} times plain decoding."
    return " ".join([sentence, *recommendation.why])
