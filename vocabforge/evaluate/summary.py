"""Figures over answer rows: accepted length, tokens/s, speed-up in both baseline countings, depths.

The arithmetic is that of the Spec-Bench scorer: accepted length is the mean over pooled steps, tokens/s
the mean over questions of sum(new_tokens) / sum(wall_time).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..decode.drafting_counts import figures_of, summed
from .benchmarks import MT_BENCH
from .compare import compare_outputs

Row = Mapping[str, Any]
OVERALL = "overall"
MT_BENCH_TASK = "mt_bench"


@dataclass(frozen=True)
class GroupSummary:
    """Figures of one method over one group of questions; None where there is nothing to divide by.

    Attributes:
        mean_accepted_length: mean over pooled verification steps, bonus token included.
        tokens_per_s: mean over questions of sum(new_tokens) / sum(wall_time).
        speedup: over the baseline's recorded ``new_tokens``.
        speedup_retokenised: over the baseline counted as the upstream scorer does, re-tokenising its text and
            taking one off each turn (for the BOS that its tokenizers add).
        target_forwards_per_token: target forwards over new tokens; no machine's noise touches it.
    """

    questions: int
    new_tokens: int
    wall_time_s: float
    mean_accepted_length: float | None
    tokens_per_s: float | None
    speedup: float | None
    speedup_retokenised: float | None
    target_forwards_per_token: float | None


@dataclass(frozen=True)
class MethodRows:
    """What one method wrote: answer rows and detail rows over the same questions."""

    answers: Sequence[Row]
    details: Sequence[Row]


def task_groups(categories: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Task name -> its categories, in order of first appearance; the MT-bench ones form one task."""
    groups: dict[str, tuple[str, ...]] = {}
    present = list(dict.fromkeys(categories))
    for category in present:
        if category in MT_BENCH:
            groups.setdefault(MT_BENCH_TASK, tuple(name for name in MT_BENCH if name in present))
        else:
            groups[category] = (category,)
    return groups


def retokenised_counts(rows: Sequence[Row], count_tokens: Callable[[str], int]) -> dict[int, int]:
    """Question id -> tokens of its answers as the upstream scorer counts the baseline's.

    Args:
        rows: the baseline's answer rows.
        count_tokens: length of a text encoded as a prompt, BOS included where the tokenizer adds one.
    """
    return {
        row["question_id"]: sum(count_tokens(text) - 1 for text in row["choices"][0]["turns"]) for row in rows
    }


def summarise(
    method: MethodRows, baseline: MethodRows, retokenised: Mapping[int, int], *, compare: bool
) -> dict[str, Any]:
    """All figures of one method as plain JSON values.

    Args:
        method, baseline: rows over the same questions; they may be the same object.
        retokenised: ``retokenised_counts`` of the baseline.
        compare: whether outputs are comparable by token id (greedy decoding).
    """
    categories = list(dict.fromkeys(row["category"] for row in baseline.answers))

    def group(members: Sequence[str]) -> dict[str, Any]:
        return asdict(_group(_select(method, members), _select(baseline, members), retokenised))

    return {
        OVERALL: group(categories),
        "tasks": {name: group(members) for name, members in task_groups(categories).items()},
        "categories": {name: group([name]) for name in categories},
        "accept_length_histogram": accept_length_histogram(method.answers),
        "depths": acceptance_by_depth(method.details),
        "time_s": _time_split(method.details),
        "finish": dict(sorted(_finishes(method.details).items())),
        "counts": figures_of(summed(_counts(method.details))),
        "outputs": asdict(compare_outputs(baseline.details, method.details)) if compare else None,
    }


def _select(rows: MethodRows, categories: Sequence[str]) -> MethodRows:
    wanted = set(categories)
    return MethodRows(
        [row for row in rows.answers if row["category"] in wanted],
        [row for row in rows.details if row["category"] in wanted],
    )


def _group(method: MethodRows, baseline: MethodRows, retokenised: Mapping[int, int]) -> GroupSummary:
    choices = [row["choices"][0] for row in method.answers]
    steps = [length for choice in choices for length in choice["accept_lengths"]]
    new_tokens = sum(sum(choice["new_tokens"]) for choice in choices)
    forwards = sum(sum(row["choices"][0]["target_forwards"]) for row in method.details)
    speed = tokens_per_second(method.answers)
    recorded = tokens_per_second(baseline.answers)
    recounted = tokens_per_second(baseline.answers, retokenised)
    return GroupSummary(
        questions=len(choices),
        new_tokens=new_tokens,
        wall_time_s=sum(sum(choice["wall_time"]) for choice in choices),
        mean_accepted_length=_ratio(sum(steps), len(steps)),
        tokens_per_s=speed,
        speedup=_ratio(speed, recorded),
        speedup_retokenised=_ratio(speed, recounted),
        target_forwards_per_token=_ratio(forwards, new_tokens),
    )


def tokens_per_second(rows: Sequence[Row], counts: Mapping[int, int] | None = None) -> float | None:
    """Mean over questions of tokens / seconds; ``counts`` replaces the recorded ``new_tokens``."""
    speeds = []
    for row in rows:
        choice = row["choices"][0]
        tokens = sum(choice["new_tokens"]) if counts is None else counts[row["question_id"]]
        speed = _ratio(tokens, sum(choice["wall_time"]))
        if speed is not None:
            speeds.append(speed)
    return _ratio(sum(speeds), len(speeds))


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def accept_length_histogram(rows: Sequence[Row]) -> dict[str, int]:
    """Accepted length -> number of verification steps, ascending (keys are texts, as JSON has them)."""
    counted = Counter(length for row in rows for length in row["choices"][0]["accept_lengths"])
    return {str(length): counted[length] for length in sorted(counted)}


def acceptance_by_depth(details: Sequence[Row]) -> list[dict[str, float | int | None]]:
    """Per draft depth (1 = first drafted token): steps that offered and that accepted it, and both rates.

    ``reached`` is the share of verification steps that accepted a node of this depth; ``conditional`` the
    share of those that had accepted its parent.
    """
    offered: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    steps = 0
    for row in details:
        choice = row["choices"][0]
        for by_depth, total in (("drafted_by_depth", offered), ("accepted_by_depth", accepted)):
            for turn in choice[by_depth]:
                for depth, count in enumerate(turn, start=1):
                    total[depth] += count
        steps += sum(len(lengths) for lengths in choice["accept_lengths"])
    rows: list[dict[str, float | int | None]] = []
    parents = steps
    for depth in range(1, max((d for d, count in offered.items() if count), default=0) + 1):
        rows.append(
            {
                "depth": depth,
                "offered": offered[depth],
                "accepted": accepted[depth],
                "reached": _ratio(accepted[depth], steps),
                "conditional": _ratio(accepted[depth], parents),
            }
        )
        parents = accepted[depth]
    return rows


def _time_split(details: Sequence[Row]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for row in details:
        for timings in row["choices"][0]["timings"]:
            for part, value in timings.items():
                seconds[part] = seconds.get(part, 0.0) + value
    return seconds


def _counts(details: Sequence[Row]) -> list[Mapping[str, int]]:
    return [counts for row in details for counts in row["choices"][0].get("counts", ())]


def _finishes(details: Sequence[Row]) -> Counter[str]:
    return Counter(finish for row in details for finish in row["choices"][0]["finish"])
