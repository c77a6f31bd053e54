"""What a search found, as ``tune.json`` holds it: figures, what to run with, and what the other ways lack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.files import sha256_file
from ...core.provenance import command_line
from ...decode.build.recipe import PLAIN
from ...decode.build.spec import MethodSpec
from ..latency.table import LATENCY, LatencyTable
from ..report.outcome import BatchRow, CandidateRow, Recommendation, RunnerUp, Times, TuneResults
from .acceptance import accepted_length
from .predict import Prediction
from .search import Entry, finalists
from .session import Joined


def results_of(joined: Joined, entries: Sequence[Entry], late: bool) -> TuneResults:
    """All of ``tune.json`` but the check.

    Args:
        late: the time for measuring acceptance was up.
    """
    loaded, plain, table = joined.loaded, joined.plain(), joined.latency
    settings = loaded.settings

    def row(entry: Entry) -> CandidateRow:
        candidate = entry.candidate
        return CandidateRow(
            name=entry.name,
            head=candidate.head.name,
            scores=joined.settings[candidate.head].label,
            tree=candidate.tree.label,
            state=entry.state,
            prompts=len(entry.rows),
            identical=sum(one.identical for one in entry.rows),
            accepted=accepted_length(entry.rows) if entry.rows else None,
            batches=batch_rows(entry.by_batch, plain, joined.warnings(entry)),
            method=method_of(candidate.recipe(settings.drafter)),
        )

    rows = [row(entry) for entry in entries]
    return TuneResults(
        version=__version__,
        command=command_line(),
        target=settings.target.resolve().name,
        drafter=str(settings.drafter),
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
        plain=batch_rows(plain, plain, {}),
        candidates=rows,
        recommendations=[recommend(entries, plain, batch) for batch in settings.batch],
        remarks=_remarks(joined, rows, late),
    )


def batch_rows(
    by_batch: Mapping[int, Prediction],
    plain: Mapping[int, Prediction],
    warnings: Mapping[int, Sequence[str]],
) -> list[BatchRow]:
    """Predictions as rows, compared with plain decoding's."""
    return [
        BatchRow(
            batch=batch,
            tokens_per_s=one.tokens_per_s,
            speedup=one.value / plain[batch].value if plain[batch].value else None,
            cycle=Times.of(one.cycle),
            warnings=list(warnings.get(batch, ())),
        )
        for batch, one in by_batch.items()
    ]


def method_of(recipe: MethodSpec) -> MethodSpec:
    """The same with paths that hold wherever the recipe is used from."""
    paths = {name: getattr(recipe, name) for name in ("drafter", "vocab", "head")}
    return recipe.model_copy(
        update={name: path.resolve() for name, path in paths.items() if path is not None}
    )


def _latency_facts(table: LatencyTable, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "sha256": sha256_file(path / LATENCY if path.is_dir() else path),
        "environment": dict(table.environment),
        "dtype": table.dtype,
        "graphs": table.graphs,
        "error": table.error,
        "notes": list(table.notes),
    }


def _remarks(joined: Joined, rows: Sequence[CandidateRow], late: bool) -> list[str]:
    table, loaded, settings = joined.latency, joined.loaded, joined.loaded.settings
    found = []
    if loaded.settings.what_if is not None:
        where = table.environment.get("gpu") or table.environment.get("processor") or "another machine"
        found.append(
            f"What if: all seconds come from {loaded.settings.what_if}, measured on {where}; accepted lengths were "
            "measured here. No speed was measured on this machine."
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
            f"The time for measuring acceptance was up: {done} of {len(rows)} ways are known on all prompts, "
            f"{unreached} on none. The same command with a longer --budget continues."
        )
    warned = [row for row in rows if any(found.warnings for found in row.batches)]
    if warned:
        first = next(found.warnings[0] for found in warned[0].batches if found.warnings)
        found.append(
            f"The seconds of {len(warned)} ways go beyond what was measured; of {warned[0].name}, {first}."
        )
    different = [row for row in rows if row.identical < row.prompts]
    if different:
        found.append(
            f"{len(different)} ways gave another output than plain decoding on a prompt or more, first "
            f"{different[0].name}: rounding may decide between two nearly equal logits of the target; eval "
            "tells which it is."
        )
    if loaded.halves.left_out:
        found.append(f"{loaded.halves.left_out} questions were left out: too long for the target.")
    return found


def recommend(entries: Sequence[Entry], plain: Mapping[int, Prediction], batch: int) -> Recommendation:
    """The way with the most predicted tokens a second: of the candidates known on most prompts, or plain decoding."""
    order = finalists(entries, batch)
    base = plain[batch]
    if not order or order[0].value(batch) <= base.value:
        return _plain_wins(order, base, batch)
    best = order[0]
    won = best.by_batch[batch]
    others = _others(order, batch)
    runner_ups = [_runner_up(entry.name, entry.by_batch[batch], won) for entry in others]
    runner_ups.append(_runner_up(PLAIN, base, won))
    speedup = won.value / base.value if base.value else None
    why = [
        f"It commits {won.accepted.value or 0:.2f} tokens a cycle of {won.cycle.value * 1e3:.3g} ms; plain decoding "
        f"one in {base.cycle.value * 1e3:.3g} ms."
    ]
    close = [one.name for one in runner_ups if not one.sure]
    if close:
        why.append(
            f"Within the intervals it cannot be told from {', '.join(close[:4])}"
            + (f" and {len(close) - 4} more." if close[4:] else ".")
        )
    return Recommendation(
        batch=batch,
        method=best.name,
        tokens_per_s=won.tokens_per_s,
        speedup=speedup,
        why=why,
        runner_ups=runner_ups,
    )


def _plain_wins(order: Sequence[Entry], base: Prediction, batch: int) -> Recommendation:
    why = ["Plain decoding is faster than every draft head and tree that was tried: do without the drafter."]
    if order:
        best = order[0].by_batch[batch]
        need = best.cycle.value / base.cycle.value  # tokens of plain decoding in that time
        why.append(
            f"The best of them, {order[0].name}, commits {best.accepted.value or 0:.2f} tokens a cycle of "
            f"{best.cycle.value * 1e3:.3g} ms, in which plain decoding makes {need:.2f}."
        )
    runner_ups = [_runner_up(one.name, one.by_batch[batch], base) for one in _best_of_heads(order)]
    return Recommendation(
        batch=batch,
        method=PLAIN,
        tokens_per_s=base.tokens_per_s,
        speedup=1.0,
        why=why,
        runner_ups=runner_ups,
    )


def _best_of_heads(order: Sequence[Entry]) -> list[Entry]:
    heads: dict[str, Entry] = {}
    for entry in order:
        heads.setdefault(entry.candidate.head.name, entry)
    return list(heads.values())


def _others(order: Sequence[Entry], batch: int) -> list[Entry]:
    """The best of each other draft head, and the winner's head with its next tree; the best first."""
    best = order[0]
    same = [entry for entry in order[1:] if entry.candidate.head == best.candidate.head][:1]
    found = [*same, *(one for one in _best_of_heads(order) if one is not best)]
    return sorted(found, key=lambda entry: -entry.value(batch))


def _runner_up(name: str, other: Prediction, won: Prediction) -> RunnerUp:
    return RunnerUp(
        name=name,
        tokens_per_s=other.value / won.value - 1,
        accepted=(other.accepted.value or 0) / (won.accepted.value or 1) - 1,
        cycle=other.cycle.value / won.cycle.value - 1,
        sure=(other.tokens_per_s.high or other.value) < (won.tokens_per_s.low or won.value),
    )
