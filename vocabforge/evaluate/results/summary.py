"""Compute figures from answer rows: accepted length, tokens/s, speed-up in both baseline countings, depths.

Computed as in the Spec-Bench scorer: accepted length is the mean over pooled steps, tokens/s the mean over
questions of sum(new_tokens) / sum(wall_time), speed-up the ratio of two such means. For several runs, as in
its mean report, accepted length is pooled over the steps of all runs; tokens/s and speed-up are computed per
run and averaged. For intervals see ``intervals.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import DataError
from ...decode.proposers.counts import figures_of, summed
from ..benchmarks import MT_BENCH
from .answers import MethodRows, Row
from .intervals import Array, Statistic, columns_of_mean, estimate, ratio, ratio_of_ratios
from .schema import DepthFigures, Figure, GroupFigures, PositionFigures, Summary

if TYPE_CHECKING:
    from ..servers.counters import Speculation

Choice = Mapping[str, Any]

# Figure -> how it is computed from its columns: statistic, and whether it is pooled; see :func:`estimate`.
FORMULAS: dict[str, tuple[Statistic, bool]] = {
    "accepted_length": (ratio, True),
    "tokens_per_s": (ratio, False),
    "speedup": (ratio_of_ratios, False),
    "speedup_retokenised": (ratio_of_ratios, False),
    "forwards_per_token": (ratio, True),
}
OVERALL = "overall"
MT_BENCH_TASK = "mt_bench"


def task_groups(categories: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return task name -> categories in order of first appearance; those of MT-bench form one task."""
    groups: dict[str, tuple[str, ...]] = {}
    present = list(dict.fromkeys(categories))
    for category in present:
        if category in MT_BENCH:
            groups.setdefault(MT_BENCH_TASK, tuple(name for name in MT_BENCH if name in present))
        else:
            groups[category] = (category,)
    return groups


def retokenised_counts(rows: Sequence[Row], count_tokens: Callable[[str], float]) -> dict[int, float]:
    """Return question id -> tokens of the baseline's answers as counted upstream: minus one per turn."""
    return {
        row["question_id"]: sum(count_tokens(text) - 1 for text in row["choices"][0]["turns"]) for row in rows
    }


def summarise_runs(
    runs: Sequence[MethodRows],
    baseline: Sequence[MethodRows],
    retokenised: Sequence[Mapping[int, float]],
    *,
    compared: bool = True,
) -> Summary:
    """Compute all figures of a method over all runs, except ``outputs``.

    Args:
        runs, baseline: rows of each run over the same questions; may be the same object.
        retokenised: ``retokenised_counts`` of the baseline in each run.
        compared: whether ``baseline`` is plain decoding; otherwise there is no speed-up.

    Raises:
        DataError: two files have different questions, so their figures cannot be compared.
    """
    order = [row["question_id"] for row in baseline[0].answers]
    categories = np.array([row["category"] for row in baseline[0].answers], dtype=np.str_)
    for rows in (runs, baseline):
        for number, run in enumerate(rows, start=1):
            _check_questions(run, order, number)
    columns = question_columns(order, runs, baseline)
    new_tokens, wall = (
        table_of(order, [run.answers for run in runs], key) for key in ("new_tokens", "wall_time")
    )
    base_wall = table_of(order, [run.answers for run in baseline], "wall_time")
    recounted = np.array(
        [[counts[question_id] for counts in retokenised] for question_id in order], dtype=np.float64
    )
    base = columns_of_mean(_quotient(recounted.reshape(base_wall.shape), base_wall))
    columns["speedup_retokenised"] = np.concatenate([columns["tokens_per_s"], base], axis=-1)
    if not compared:
        columns |= {name: np.zeros_like(columns[name]) for name in ("speedup", "speedup_retokenised")}

    def group(chosen: NDArray[np.bool_]) -> GroupFigures:
        figures = {name: estimate(values[chosen], *FORMULAS[name]) for name, values in columns.items()}
        return GroupFigures(
            questions=int(chosen.sum()),
            new_tokens=int(new_tokens[chosen].sum()),
            wall_time_s=float(wall[chosen].sum()),
            **figures,
        )

    members = {name: categories == name for name in dict.fromkeys(categories.tolist())}
    tasks = {
        name: np.any([members[category] for category in inside], axis=0)
        for name, inside in task_groups(list(members)).items()
    }
    details = [row for run in runs for row in run.details]
    choices = [row["choices"][0] for row in details]
    return Summary(
        overall=group(np.ones(len(order), dtype=bool)),
        tasks={name: group(chosen) for name, chosen in tasks.items()},
        categories={name: group(chosen) for name, chosen in members.items()},
        depths=acceptance_by_depth(details),
        positions=acceptance_by_position(choices),
        time_s=_time_split(runs),
        counts=figures_of(summed([counts for choice in choices for counts in choice.get("counts", ())])),
    )


def with_totals(summary: Summary, total: Speculation) -> Summary:
    """Add the acceptance of a server under load, counted over all requests: no interval, no tasks."""
    length = (total.verifications + total.accepted) / total.verifications if total.verifications else None
    choice = {
        "accept_lengths": [],
        "verifications": [total.verifications],
        "accepted_by_depth": [list(total.accepted_by_depth)],
        "drafted_by_depth": [list(total.offered)],
    }
    return summary.model_copy(
        update={
            "overall": summary.overall.model_copy(update={"accepted_length": Figure(value=length)}),
            "depths": acceptance_by_depth([{"choices": [choice]}]),
        }
    )


def _check_questions(rows: MethodRows, order: Sequence[int], run: int) -> None:
    for part in (rows.answers, rows.details):
        answered = {row["question_id"] for row in part}
        if answered == set(order) and len(part) == len(order):
            continue
        odd = sorted(answered ^ set(order))
        raise DataError(
            "the answers of two methods or runs are not to the same questions",
            got=f"{len(part)} rows in run {run}" + (f", odd: {odd[:5]}" if odd else ""),
            expected=f"the {len(order)} questions of the first run of plain decoding",
            remedy="evaluate again",
        )


def acceptance_by_depth(details: Sequence[Row]) -> list[DepthFigures]:
    """Return the acceptance at each draft depth, down to the deepest that was offered."""
    choices = [row["choices"][0] for row in details]
    steps = int(sum(value for choice in choices if not np.isnan(value := _steps(choice))))

    def totals(key: str) -> list[int]:
        turns = [turn for choice in choices for turn in choice[key]]
        return [sum(counts) for counts in zip_longest(*turns, fillvalue=0)]

    rows: list[DepthFigures] = []
    known = totals("drafted_by_depth")
    # A server may report acceptance at a depth without the number of offered tokens.
    accepted_at = totals("accepted_by_depth")
    for depth in range(1, max(len(known), len(accepted_at)) + 1):
        offered = (known[depth - 1] if depth <= len(known) else 0) if known else None
        accepted = accepted_at[depth - 1] if depth <= len(accepted_at) else 0
        reached = accepted / steps if steps else None
        rows.append(DepthFigures(depth=depth, offered=offered, accepted=accepted, reached=reached))
    while rows and not (rows[-1].offered or rows[-1].accepted):
        rows.pop()
    return rows


POSITIONS = (0, *(1024 << doubling for doubling in range(8)))  # where the ranges of text lengths begin


def acceptance_by_position(choices: Sequence[Choice]) -> list[PositionFigures]:
    """Return the accepted length by the length of the text at a verification; empty if no prompt's length is known.

    A drafter that was trained on short rows accepts less beyond that length.
    """
    counts, tokens = np.zeros(len(POSITIONS), np.int64), np.zeros(len(POSITIONS), np.int64)
    for choice in choices:
        for prompt, lengths in zip(choice["prompt_tokens"], choice["accept_lengths"]):
            if prompt is None or not lengths:
                continue
            begins = prompt + np.cumsum([0, *lengths[:-1]])
            place = np.searchsorted(POSITIONS, begins, side="right") - 1
            np.add.at(counts, place, 1)
            np.add.at(tokens, place, lengths)
    return [
        PositionFigures(
            start=start, stop=stop, verifications=int(count), accepted_length=float(total / count)
        )
        for start, stop, count, total in zip_longest(POSITIONS, POSITIONS[1:], counts, tokens)
        if count
    ]


def _time_split(runs: Sequence[MethodRows]) -> dict[str, float]:
    """Return seconds by part; time outside of all parts is ``other``, so that they sum to the wall time."""
    wall = sum(sum(row["choices"][0]["wall_time"]) for run in runs for row in run.answers)
    seconds: dict[str, float] = {}
    for timings in (turn for run in runs for row in run.details for turn in row["choices"][0]["timings"]):
        for part, value in timings.items():
            seconds[part] = seconds.get(part, 0.0) + value
    rest = wall - sum(seconds.values())
    return seconds | ({"other": seconds.get("other", 0.0) + rest} if rest > 0 else {})


def question_columns(
    ids: Sequence[int], runs: Sequence[MethodRows], baseline: Sequence[MethodRows]
) -> dict[str, Array]:
    """Return figure -> (Q, R, C) columns for its statistic, except ``speedup_retokenised``.

    Args:
        ids: the questions, in the order of the columns.
    """
    answers, details = [run.answers for run in runs], [run.details for run in runs]
    base = [run.answers for run in baseline]
    new_tokens, wall = (table_of(ids, answers, key) for key in ("new_tokens", "wall_time"))
    speed = columns_of_mean(_quotient(new_tokens, wall))
    base_speed = _quotient(table_of(ids, base, "new_tokens"), table_of(ids, base, "wall_time"))
    lengths, steps = (table_of(ids, details, count) for count in (_lengths, _steps))
    forwards = table_of(ids, details, "target_forwards")
    return {
        "accepted_length": np.stack([lengths, steps], axis=-1),
        "tokens_per_s": speed,
        "speedup": np.concatenate([speed, columns_of_mean(base_speed)], axis=-1),
        "forwards_per_token": np.stack([forwards, new_tokens], axis=-1),
    }


def table_of(
    ids: Sequence[int], runs: Sequence[Sequence[Row]], number: str | Callable[[Choice], float]
) -> Array:
    """Return a (Q, R) table of a number of each question in each run; a key of the choice is summed over turns."""
    by_id = [{row["question_id"]: row["choices"][0] for row in rows} for rows in runs]
    values = [
        [
            _sum(run[question_id][number]) if isinstance(number, str) else number(run[question_id])
            for run in by_id
        ]
        for question_id in ids
    ]
    return np.array(values, dtype=np.float64).reshape(len(ids), len(runs))


def _quotient(numerator: Array, denominator: Array) -> Array:
    return ratio(np.stack([numerator, denominator], axis=-1))


def _sum(values: Sequence[float | None]) -> float:
    """Sum the values; NaN if a server did not report one of them."""
    return sum((np.nan if value is None else value for value in values), 0.0)


def _steps(choice: Choice) -> float:
    told = choice.get("verifications")
    return float(sum(map(len, choice["accept_lengths"]))) if told is None else _sum(told)


def _lengths(choice: Choice) -> float:
    if (told := choice.get("verifications")) is None:
        return float(sum(map(sum, choice["accept_lengths"])))
    return _sum(told) + _sum(choice["accepted"])
