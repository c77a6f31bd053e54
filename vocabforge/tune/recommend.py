"""Which way of decoding to run with, and what the others lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..decode.recipe import PLAIN
from ..evaluate.results import Figure
from .acceptance import PromptRow, accepted_length
from .outcome import BatchRow, Recommendation, RunnerUp, Times
from .predict import Prediction
from .search import Entry, finalists


def batch_rows(
    by_batch: Mapping[int, Prediction],
    plain: Mapping[int, Prediction],
    warnings: Mapping[int, Sequence[str]] | None = None,
) -> list[BatchRow]:
    """Predictions as rows, beside plain decoding's."""
    found = []
    for batch, one in by_batch.items():
        base = plain[batch].value
        found.append(
            BatchRow(
                batch=batch,
                tokens_per_s=one.tokens_per_s,
                speedup=one.value / base if base else None,
                cycle=Times.of(one.cycle),
                warnings=list((warnings or {}).get(batch, ())),
            )
        )
    return found


def identical(rows: Sequence[PromptRow]) -> int:
    """Prompts whose output is plain decoding's."""
    return sum(row.identical for row in rows)


def accepted_of(entry: Entry) -> Figure | None:
    """Accepted length; None where nothing was decoded."""
    return accepted_length(entry.rows) if entry.rows else None


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
    rate = other.value / won.value - 1
    accepted = (other.accepted.value or 0) / (won.accepted.value or 1) - 1
    cycle = other.cycle.value / won.cycle.value - 1
    sure = (other.tokens_per_s.high or other.value) < (won.tokens_per_s.low or won.value)
    text = f"{_change(accepted, 'tokens a cycle')} and cycles {_longer(cycle)}: {_change(rate, 'tokens a second')}"
    return RunnerUp(name=name, tokens_per_s=rate, accepted=accepted, cycle=cycle, sure=sure, text=text)


def _change(share: float, what: str) -> str:
    if abs(share) < 0.0005:
        return f"as many {what}"
    return f"{abs(share):.1%} {'more' if share > 0 else 'fewer'} {what}"


def _longer(share: float) -> str:
    if abs(share) < 0.0005:
        return "as long"
    return f"{abs(share):.1%} {'longer' if share > 0 else 'shorter'}"
