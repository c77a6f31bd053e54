"""What a search found, as ``tune.json`` holds it: figures, what to run with, and remarks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.files import sha256_file
from ...core.hub import hub_name, model_name
from ...core.provenance import command_line
from ...decode.build.recipe import PLAIN
from ...decode.build.spec import MethodSpec
from ...evaluate.results.schema import Figure
from ...models.heads.registry import DraftHead
from ..latency.table import LATENCY, LatencyTable
from ..outcome import BatchRow, CandidateRow, Recommendation, TuneResults
from ..types import setting_of
from .acceptance import accepted_length
from .predict import Prediction
from .search import Entry, best_of_heads, finalists
from .session import Joined


def results_of(joined: Joined, entries: Sequence[Entry], late: bool) -> TuneResults:
    """All of ``tune.json`` except the check.

    Args:
        late: the time for measuring acceptance was up.
    """
    loaded, plain, table = joined.loaded, joined.plain(), joined.latency
    settings = loaded.settings

    def row(entry: Entry) -> CandidateRow:
        choice = entry.candidate.head
        head: DraftHead = loaded.head(choice)
        return CandidateRow(
            name=entry.name,
            head=choice.name,
            scores=setting_of(head).label,
            state=entry.state,
            prompts=len(entry.rows),
            identical=sum(one.identical for one in entry.rows),
            accepted=accepted_length(entry.rows) if entry.rows else None,
            batches=_batch_rows(entry.by_batch, plain),
            method=_absolute(entry.candidate.recipe(settings.drafter)),
        )

    rows = [row(entry) for entry in entries]
    return TuneResults(
        version=__version__,
        command=command_line(),
        target=model_name(settings.target),
        drafter=hub_name(settings.drafter),
        what_if=None if settings.what_if is None else str(settings.what_if),
        latency=_latency_facts(table, settings.what_if or loaded.output / LATENCY),
        environment=loaded.environment,
        inputs=loaded.input_hashes,
        settings={
            "new_tokens": settings.max_new_tokens,
            "batches": list(settings.batch),
            "prompts": settings.prompts,
            "prompt_format": loaded.halves.form,
            "dtype": settings.dtype,
            "budget": None if math.isinf(settings.seconds) else settings.seconds,
        },
        prompts={
            "measured": len(loaded.source),
            "checking": len(loaded.halves.checking.questions),
            "left_out": loaded.halves.left_out,
        },
        plain=_batch_rows(plain, plain),
        candidates=rows,
        recommendations=[recommend(entries, plain, batch) for batch in settings.batch],
        remarks=_remarks(joined, rows, late),
    )


def _batch_rows(by_batch: Mapping[int, Prediction], plain: Mapping[int, Prediction]) -> list[BatchRow]:
    return [
        BatchRow(
            batch=batch,
            tokens_per_s=one.tokens_per_s,
            speedup=one.value / plain[batch].value if plain[batch].value else None,
            cycle=Figure(value=one.cycle.value, low=one.cycle.low, high=one.cycle.high),
        )
        for batch, one in by_batch.items()
    ]


def _absolute(spec: MethodSpec) -> MethodSpec:
    """The same with paths that hold wherever the recipe is used from."""
    paths = {name: getattr(spec, name) for name in ("drafter", "vocab", "head")}
    return spec.model_copy(update={name: path.resolve() for name, path in paths.items() if path is not None})


def _latency_facts(table: LatencyTable, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "sha256": sha256_file(path / LATENCY if path.is_dir() else path),
        **{name: getattr(table, name) for name in ("environment", "dtype", "graphs", "error")},
        "notes": list(table.notes),
    }


def _remarks(joined: Joined, rows: Sequence[CandidateRow], late: bool) -> list[str]:
    table, loaded, settings = joined.latency, joined.loaded, joined.loaded.settings
    found = []
    if settings.what_if is not None:
        where = table.environment.get("gpu") or table.environment.get("processor") or "another machine"
        found.append(
            f"What if: all seconds come from {settings.what_if}, measured on {where}; only accepted lengths were "
            "measured here."
        )
    if table.dtype != settings.dtype:
        found.append(
            f"Seconds are of {table.dtype}, accepted lengths of {settings.dtype}: rounding changes them a little."
        )
    found += [f"{name} was not searched: {why}." for name, why in joined.left_out.items()]
    if late:
        done = sum(row.state == "measured" for row in rows)
        unreached = sum(row.state == "not reached" for row in rows)
        found.append(
            f"The time for measuring acceptance was up: {done} of {len(rows)} methods are known on all prompts, "
            f"{unreached} on none. The same command with more --seconds continues."
        )
    if different := [row.name for row in rows if row.identical < row.prompts]:
        found.append(
            f"{len(different)} methods gave another output than plain decoding, first {different[0]}: run eval with "
            "the recipe, which tells a tie within rounding from a fault."
        )
    if loaded.halves.left_out:
        found.append(f"{loaded.halves.left_out} questions were left out: too long for the target.")
    return found


def recommend(entries: Sequence[Entry], plain: Mapping[int, Prediction], batch: int) -> Recommendation:
    """The method with the most predicted tokens a second: a candidate known on most prompts, or plain decoding."""
    order, base = finalists(entries, batch), plain[batch]
    others = best_of_heads(order)
    if order and order[0].value(batch) > base.value:
        best, won = order[0], order[0].by_batch[batch]
        same = [entry for entry in order[1:] if entry.candidate.head == best.candidate.head][:1]
        others = sorted([*same, *others[1:]], key=lambda entry: -entry.value(batch))
        name = best.name
        why = [
            f"It commits {won.accepted.value or 0:.2f} tokens a cycle of {won.cycle.value * 1e3:.3g} ms; plain "
            f"decoding one in {base.cycle.value * 1e3:.3g} ms."
        ]
        methods = [(PLAIN, base), *((entry.name, entry.by_batch[batch]) for entry in others)]
    else:
        name, won = PLAIN, base
        methods = [(entry.name, entry.by_batch[batch]) for entry in order]
        if not order or any(not _apart(other, won) for _, other in methods):
            why = ["No draft head and tree is predicted to be faster than plain decoding."]
        else:
            why = [
                "Plain decoding is faster than every draft head and tree of the last round: do without the drafter."
            ]
        if order:
            first = order[0].by_batch[batch]
            why.append(
                f"The best of them, {order[0].name}, commits {first.accepted.value or 0:.2f} tokens a cycle of "
                f"{first.cycle.value * 1e3:.3g} ms, in which plain decoding makes "
                f"{first.cycle.value / base.cycle.value:.2f}."
            )
    if close := [method for method, other in methods if not _apart(other, won)]:
        more = f" and {len(close) - 4} more" if close[4:] else ""
        why.append(f"Within the intervals it cannot be told from {', '.join(close[:4])}{more}.")
    return Recommendation(
        batch=batch,
        method=name,
        tokens_per_s=won.tokens_per_s,
        speedup=won.value / base.value if base.value else None,
        why=why,
        others=[entry.name for entry in others],
    )


def _apart(other: Prediction, won: Prediction) -> bool:
    """The intervals do not overlap."""
    return (other.tokens_per_s.high or other.value) < (won.tokens_per_s.low or won.value)
