"""Compare evaluations over the same questions: each method as a ratio to a reference, with its uncertainty.

A ratio's interval is bootstrapped: questions are drawn with replacement, the same draw is used for both
methods, and their figures are divided (``results/intervals.py``). Runs with different random numbers are not
paired: each uses its own draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...core.errors import DataError, MismatchError
from ...core.files import form_errors
from ...core.registry import check_known
from ..identity.compare import compare_outputs
from ..results.answers import MethodRows
from ..results.intervals import (
    Array,
    estimate,
    figure_samples,
    figure_value,
    percentile_interval,
    ratio,
    verdict_of,
)
from ..results.schema import Figure, MethodResults, Strict
from ..results.summary import FORMULAS, OVERALL, QuestionTable, task_groups
from .runs import EvaluationRun, is_greedy, machine_facts, refuse_incomparable, run_notes, same_streams

# Larger is better for all figures.
FIGURES = ("accepted_length", "speedup", "tokens_per_s")
COMPARED = ("accepted_length", "speedup")


class RunRow(Strict):
    """One evaluation."""

    label: str
    folder: str
    hash: str
    created: str
    vocabforge: str
    command: str
    machine: dict[str, str]


class MethodRow(Strict):
    """A method of a run over the compared questions.

    Attributes:
        name: ``RUN:METHOD``.
        baseline: whether it is the run's plain decoding.
        figures: group (``overall``, then tasks) -> figure -> value with spread and interval.
        ratios: group -> figure -> ratio to the reference, with its 95% interval over questions. It has no
            value if it would compare times of different machines. Empty for the reference and for plain
            decoding.
    """

    name: str
    run: str
    method: str
    baseline: bool
    description: str
    figures: dict[str, dict[str, Figure]]
    ratios: dict[str, dict[str, Figure]]


class RunComparison(Strict):
    """Result of ``vocabforge report A B``, as printed by ``--json``.

    Attributes:
        settings: settings that all runs share.
        questions: number of questions answered by every method of every run; all figures use only these.
        groups: group -> number of questions.
        reference: ``RUN:METHOD`` that the others are compared with.
        notes: relevant differences between the runs, one sentence each.
    """

    schema_version: Literal[2] = 2
    vocabforge: str
    target: str
    benchmark: str
    settings: dict[str, str]
    questions: int
    groups: dict[str, int]
    reference: str
    runs: list[RunRow]
    methods: list[MethodRow]
    notes: list[str]


@dataclass(frozen=True, eq=False)
class _Side:
    """A method of a run: its rows, and per figure the contribution (Q, R, C) of each shared question."""

    name: str
    run: EvaluationRun
    method: MethodResults
    rows: Sequence[MethodRows]
    columns: Mapping[str, Array]

    @property
    def baseline(self) -> bool:
        return self.method is self.run.results.methods[0]


def compare_runs(runs: Sequence[EvaluationRun], *, reference: str | None = None) -> RunComparison:
    """Compare evaluations over the questions that all of them answered.

    Args:
        reference: ``RUN:METHOD``; None selects the first run's method with the largest speed-up.

    Raises:
        MismatchError: the runs differ in a setting that affects the figures, or share no answered question.
        UsageError: the reference does not exist.
        DataError: a row cannot be read.
    """
    settings = refuse_incomparable(runs)
    names = [run.name_of(method) for run in runs for method in run.results.methods]
    if reference is not None:
        check_known(reference, names, "method", source="--reference RUN:METHOD")
    folders = ", ".join(str(run.folder) for run in runs)
    with form_errors("the answers cannot be read", folders, kind=DataError, remedy="evaluate again"):
        return _compared(runs, settings, reference)


def _compared(
    runs: Sequence[EvaluationRun], settings: dict[str, str], reference: str | None
) -> RunComparison:
    sides, groups = _load(runs)
    base = _reference(sides, runs[0], reference)
    plain = {one.run.label: one for one in sides if one.baseline}
    questions = int(groups[OVERALL].sum())
    return RunComparison(
        vocabforge=__version__,
        target=runs[0].results.target.name,
        benchmark=runs[0].results.benchmark.name,
        settings=settings,
        questions=questions,
        groups={name: int(members.sum()) for name, members in groups.items()},
        reference=base.name,
        runs=[
            RunRow(
                label=run.label,
                folder=str(run.folder),
                hash=run.content_hash,
                created=run.results.created,
                vocabforge=run.results.vocabforge,
                command=run.results.command,
                machine=machine_facts(run.results),
            )
            for run in runs
        ],
        methods=[_method_row(one, base, groups) for one in sides],
        notes=run_notes(runs, base.run, questions) + _plain_notes(plain, plain[base.run.label]),
    )


def _load(runs: Sequence[EvaluationRun]) -> tuple[list[_Side], dict[str, NDArray[np.bool_]]]:
    """Load all methods, each run's plain decoding first, and group the questions answered by all of them."""
    rows = {run.name_of(method): run.rows(method) for run in runs for method in run.results.methods}
    answered = [
        {row["question_id"] for row in kind}
        for method in rows.values()
        for one in method
        for kind in (one.answers, one.details)
    ]
    ids = sorted(set.intersection(*answered))
    if not ids:
        raise MismatchError(
            "the runs share no question that all their methods answered",
            got="; ".join(f"{run.label}: {run.results.answered} answered" for run in runs),
            remedy="see failures.jsonl in each folder for the questions left out, and why",
        )
    categories = {row["question_id"]: row["category"] for row in next(iter(rows.values()))[0].answers}
    names = np.array([str(categories[number]) for number in ids])
    groups = {OVERALL: np.ones(len(ids), dtype=bool)}
    groups |= {task: np.isin(names, members) for task, members in task_groups(names.tolist()).items()}
    sides = []
    for run in runs:
        plain = rows[run.name_of(run.results.methods[0])]
        for method in run.results.methods:
            own = rows[run.name_of(method)]
            columns = QuestionTable.read(ids, own, plain).columns()
            sides.append(_Side(run.name_of(method), run, method, own, columns))
    return sides, groups


def _reference(sides: Sequence[_Side], first: EvaluationRun, wanted: str | None) -> _Side:
    """Return the requested method, or the first run's largest speed-up, or its plain decoding if alone."""
    if wanted is not None:
        return next(one for one in sides if one.name == wanted)
    own = [one for one in sides if one.run is first]
    return max(
        own[1:] or own, key=lambda one: figure_value(one.columns["speedup"], **FORMULAS["speedup"]) or 0.0
    )


def _method_row(one: _Side, base: _Side, groups: Mapping[str, NDArray[np.bool_]]) -> MethodRow:
    ratios = {}
    if one is not base and not one.baseline:
        ratios = {
            group: {name: _ratio(one, base, name, members) for name in COMPARED}
            for group, members in groups.items()
        }
    return MethodRow(
        name=one.name,
        run=one.run.label,
        method=one.method.name,
        baseline=one.baseline,
        description=one.method.description,
        figures={
            group: {name: estimate(one.columns[name][members], **FORMULAS[name]) for name in FIGURES}
            for group, members in groups.items()
        },
        ratios=ratios,
    )


def _ratio(one: _Side, base: _Side, name: str, members: NDArray[np.bool_]) -> Figure:
    results = one.run.results, base.run.results
    if name != "accepted_length" and machine_facts(results[0]) != machine_facts(results[1]):
        return Figure()
    columns = one.columns[name][members], base.columns[name][members]
    return ratio_of(*columns, name, paired=same_streams(*results))


def ratio_of(first: Array, second: Array, name: str, *, paired: bool) -> Figure:
    """Return ``first`` over ``second``, (Q, R, C) columns over the same questions, with its 95% interval.

    ``paired`` uses the same draws of questions for both; otherwise the draws are independent.
    """
    mine, theirs = (figure_value(columns, **FORMULAS[name]) for columns in (first, second))
    if mine is None or not theirs:
        return Figure()
    if len(first) < 2:
        return Figure(value=mine / theirs)
    one, two = (figure_samples(columns, **FORMULAS[name]) for columns in (first, second))
    # Draws are deterministic and mutually independent, so shifting them by one makes them unpaired.
    low, high = percentile_interval(ratio(np.stack([one, two if paired else np.roll(two, 1)], axis=-1)))
    return Figure(value=mine / theirs, low=low, high=high)


def _plain_notes(plain: Mapping[str, _Side], home: _Side) -> list[str]:
    """Describe how plain decoding differs from the reference's run: speed on the same machine, or output."""
    found = []
    for label, other in plain.items():
        if other is home:
            continue
        results = home.run.results, other.run.results
        if machine_facts(results[0]) == machine_facts(results[1]):
            columns = other.columns["tokens_per_s"], home.columns["tokens_per_s"]
            drift = ratio_of(*columns, "tokens_per_s", paired=same_streams(*results))
            if drift.value is not None and verdict_of(drift) in ("better", "worse"):
                found.append(
                    f"the machine was not equally fast: plain decoding has {drift.value - 1:+.1%} tokens/s in {label}, "
                    f"compared with {home.run.label}; compare the speed-ups, not the tokens/s"
                )
        if is_greedy(results[0]):
            # Greedy runs of one evaluation differ only in time, so compare the first.
            same = compare_outputs(home.rows[0].details, other.rows[0].details)
            if same.divergences:
                first = same.divergences[0]
                found.append(
                    f"{other.name} differs from {home.name} in {len(same.divergences)} of {same.compared} questions, "
                    f"first at question {first.question_id}, turn {first.turn + 1}, token {first.position + 1}: "
                    "another machine or version of PyTorch rounds differently, or the model differs"
                )
    return found
