"""Results of a search, as stored in ``tune.json``: figures, recommendations and remarks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from .. import __version__
from ..core.config import StrictModel
from ..core.hub import hub_name, model_name
from ..core.provenance import command_line
from ..decode.build.recipe import PLAIN
from ..decode.spec import MethodSpec
from ..evaluate.results.schema import Figure
from ..models.heads.registry import DraftHead
from .search import Entry, best_of_heads, finalists
from .session import TuneSession

TUNE = "tune.json"
RECIPE = "recipe.yaml"
SCHEMA_VERSION = 2


class BatchRow(StrictModel):
    """Measurement with one batch size.

    Attributes:
        tokens_per_s: throughput of all requests together, including the prompts' passes.
        speedup: ratio to plain decoding in the same turns.
        cycle: seconds per cycle, including the prompts' passes; None for several requests.
    """

    batch: int
    tokens_per_s: Figure
    speedup: Figure
    cycle: float | None


class CandidateRow(StrictModel):
    """A draft head with a draft tree.

    Attributes:
        head: name of the draft head; ``scores``: number of tokens that it scores.
        state: state of the search: ``measured``, ``stopped``, ``not reached``.
        groups: number of groups of prompts measured; the output of ``different`` of them differs from plain
            decoding.
        accepted: tokens per cycle of one request; None if nothing was decoded.
        method: the method as ``eval --recipe`` runs it.
    """

    name: str
    head: str
    scores: str
    state: str
    groups: int
    different: int
    accepted: Figure | None
    batches: list[BatchRow]
    method: MethodSpec

    def at(self, batch: int) -> BatchRow | None:
        """Return the row of a batch size."""
        return next((row for row in self.batches if row.batch == batch), None)


class Recommendation(StrictModel):
    """The method to use for a number of concurrent requests.

    Attributes:
        method: name of a candidate, or ``plain``.
        speedup: ratio to plain decoding.
        why: reasons, one sentence each.
        others: the best method of each other draft head and this head's next tree, best first.
    """

    batch: int
    method: str
    speedup: Figure
    why: list[str]
    others: list[str]


class TuneResults(StrictModel):
    """Content of ``tune.json``.

    Attributes:
        inputs: role -> hash.
        prompts: maximum number ``measured``, and number ``left_out`` as too long.
        plain: tokens/s of plain decoding by batch size, over all turns.
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
    plain: dict[str, float | None]
    candidates: list[CandidateRow]
    recommendations: list[Recommendation]
    remarks: list[str]

    def row(self, name: str) -> CandidateRow:
        """Return a candidate by name."""
        return next(row for row in self.candidates if row.name == name)


ONE = Figure(value=1.0, low=1.0, high=1.0)


def results_of(loaded: TuneSession, entries: Sequence[Entry], late: bool) -> TuneResults:
    """Return the content of ``tune.json``.

    Args:
        late: whether the time limit was reached.
    """
    settings = loaded.settings
    rows = [
        CandidateRow(
            name=entry.name,
            head=entry.candidate.head.name,
            scores=scores_of(loaded.head(entry.candidate.head)),
            state=entry.state,
            groups=sum(one.rows for one in entry.by_batch.values()),
            different=sum(one.different for one in entry.by_batch.values()),
            accepted=next((one.accepted for one in entry.by_batch.values()), None),
            batches=[
                BatchRow(batch=batch, tokens_per_s=one.tokens_per_s, speedup=one.speedup, cycle=one.cycle)
                for batch, one in entry.by_batch.items()
            ],
            method=_absolute(entry.candidate.recipe(settings.drafter)),
        )
        for entry in entries
    ]
    return TuneResults(
        version=__version__,
        command=command_line(),
        target=model_name(settings.target),
        drafter=hub_name(settings.drafter),
        environment=loaded.environment,
        inputs=loaded.input_hashes,
        settings={
            "new_tokens": settings.max_new_tokens,
            "batches": list(settings.batch),
            "prompts": settings.prompts,
            "prompt_format": loaded.form,
            "dtype": settings.dtype,
            "budget": None if math.isinf(settings.seconds) else settings.seconds,
        },
        prompts={"measured": len(loaded.meter), "left_out": loaded.left_out},
        plain={str(batch): _plain_rate(entries, batch) for batch in settings.batch},
        candidates=rows,
        recommendations=[recommend(entries, batch) for batch in settings.batch],
        remarks=_remarks(loaded, rows, late),
    )


def scores_of(head: DraftHead) -> str:
    """Return the kind of a draft head, and the number of tokens that it scores at draft steps 0, 1, ...."""
    scored = getattr(head, "scored", None)
    steps = max(len(getattr(head, name, None) or ()) for name in ("sizes", "budgets"))
    sizes = [head.size if scored is None else scored(step) for step in range(max(steps, 1))]
    shown = sizes if len(set(sizes)) > 1 else sizes[:1]
    return " ".join([getattr(head, "KIND", type(head).__name__), *(f"{size:,}" for size in shown)])


def _plain_rate(entries: Sequence[Entry], batch: int) -> float | None:
    rates = [entry.by_batch[batch].plain.value for entry in entries if batch in entry.by_batch]
    known = [rate for rate in rates if rate is not None]
    return median(known) if known else None


def _absolute(spec: MethodSpec) -> MethodSpec:
    """Return the method with absolute paths, so that the recipe works from any folder."""
    paths = {name: getattr(spec, name) for name in ("drafter", "vocab", "head")}
    return spec.model_copy(update={name: path.resolve() for name, path in paths.items() if path is not None})


def _remarks(loaded: TuneSession, rows: Sequence[CandidateRow], late: bool) -> list[str]:
    found = []
    if late:
        done = sum(row.state == "measured" for row in rows)
        unreached = sum(row.state == "not reached" for row in rows)
        found.append(
            f"The time for measuring was up: {done} of {len(rows)} methods are known on all prompts, {unreached} on "
            "none. The same command with more --seconds continues."
        )
    if different := [row.name for row in rows if row.different]:
        found.append(
            f"{len(different)} methods gave another output than plain decoding, first {different[0]}: run eval with "
            "the recipe, which distinguishes a tie within rounding from a fault."
        )
    if loaded.left_out:
        found.append(f"{loaded.left_out} questions were left out: too long for the target.")
    return found


def recommend(entries: Sequence[Entry], batch: int) -> Recommendation:
    """Return the fastest method: a candidate measured on the most prompts, or plain decoding."""
    order = finalists(entries, batch)
    others = best_of_heads(order)
    speedups = {entry.name: entry.by_batch[batch].speedup for entry in order}
    best, won = PLAIN, ONE
    if order and order[0].value(batch) > 1:
        first = order[0]
        best, won = first.name, speedups[first.name]
        same = [entry for entry in order[1:] if entry.candidate.head == first.candidate.head][:1]
        others = sorted([*same, *others[1:]], key=lambda entry: -entry.value(batch))
        own = first.by_batch[batch]
        cycle = "" if own.cycle is None else f" of {own.cycle * 1e3:.3g} ms"
        why = [f"It commits {own.accepted.value or 0:.2f} tokens a cycle{cycle}."]
    elif order and not any(_overlap(speedups[entry.name], ONE) for entry in order):
        why = [
            "Plain decoding is faster than every draft head and tree of the last round: do without the drafter."
        ]
    else:
        why = ["No draft head and tree is faster than plain decoding."]
    if best == PLAIN and order:
        why.append(f"The best of them, {order[0].name}, is {order[0].value(batch):.2f} times as fast.")
    rivals = {PLAIN: ONE} | {
        entry.name: speedups[entry.name] for entry in (others if best != PLAIN else order)
    }
    if close := [name for name, speedup in rivals.items() if name != best and _overlap(speedup, won)]:
        more = f" and {len(close) - 4} more" if close[4:] else ""
        why.append(f"The intervals do not distinguish it from {', '.join(close[:4])}{more}.")
    return Recommendation(
        batch=batch, method=best, speedup=won, why=why, others=[entry.name for entry in others]
    )


def _overlap(one: Figure, other: Figure) -> bool:
    """Return whether two intervals overlap; a figure without an interval counts as a point."""
    figures = (one, other)
    low = [figure.value if figure.low is None else figure.low for figure in figures]
    high = [figure.value if figure.high is None else figure.high for figure in figures]
    return max(value or 0.0 for value in low) <= min(value or 0.0 for value in high)
