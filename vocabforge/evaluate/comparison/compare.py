"""Several evaluations beside each other: the same questions, each method against a reference, what is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...core.errors import UsageError, did_you_mean
from ..results import Figure
from ..summary import OVERALL
from . import checks
from .figures import KINDS, Verdict, verdict_of
from .outputs import output_rows, output_warnings
from .results import DifferenceRow, MethodRow, RunComparison, RunRow
from .runs import SEPARATOR, EvaluationRun
from .sides import Loaded, Side, common_questions, load, make_sides, question_groups
from .warnings import run_warnings

Groups = Mapping[str, NDArray[np.bool_]]

_OTHER_MACHINE = "measured on another machine"
_DRIFT = "the machine was not equally fast"


def compare_runs(
    runs: Sequence[EvaluationRun], *, reference: str | None = None, across_machines: bool = False
) -> RunComparison:
    """Compare evaluations over the questions that all of them answered.

    Args:
        runs: at least two, of ``open_runs``.
        reference: ``RUN:METHOD``; None: the method of the first run with the largest speed-up.
        across_machines: form differences of times measured on different machines, too.

    Raises:
        MismatchError: they differ in what decides the figures, or share no answered question.
        UsageError: no such reference.
        DataError: rows that cannot be read.
    """
    checks.refuse_incomparable(runs)
    _check_reference(runs, reference)
    loaded = load(runs)
    ids = common_questions(loaded)
    groups = question_groups(loaded[0], ids)
    sides = [side for one in loaded for side in make_sides(one, ids)]
    base = _reference(sides, loaded[0], reference)
    run_rows = _run_rows(loaded, sides, base, across_machines)
    outputs = output_rows(loaded, base.label, ids)
    return RunComparison(
        vocabforge=__version__,
        target=runs[0].results.target.name,
        benchmark=runs[0].results.benchmark.name,
        greedy=checks.is_greedy(runs[0].results),
        settings={
            name: values[0] for name, values in checks.deciding_facts([run.results for run in runs]).items()
        },
        questions=len(ids),
        groups={name: int(members.sum()) for name, members in groups.items()},
        reference=base.name,
        across_machines=across_machines,
        runs=run_rows,
        methods=[_method_row(side, groups) for side in sides],
        differences=_differences(sides, base, groups, run_rows, across_machines),
        outputs=outputs,
        differing=_differing(runs),
        warnings=[
            *run_warnings(runs, run_rows, base.label, len(ids), across_machines),
            *output_warnings(outputs, runs),
        ],
    )


def _check_reference(runs: Sequence[EvaluationRun], wanted: str | None) -> None:
    """Before rows are read, refuse a method that no run has."""
    names = [f"{run.label}{SEPARATOR}{method.name}" for run in runs for method in run.results.methods]
    if wanted is None or wanted in names:
        return
    raise UsageError(
        "there is no such method to compare with",
        got=wanted,
        expected=", ".join(names),
        source="--reference RUN:METHOD",
        remedy=did_you_mean(wanted, names),
    )


def _reference(sides: Sequence[Side], first: Loaded, wanted: str | None) -> Side:
    """The side asked for, else the first run's largest speed-up; plain decoding where it has nothing else."""
    if wanted is not None:
        return next(side for side in sides if side.name == wanted)
    own = [side for side in sides if side.loaded is first]
    return max(own[1:] or own, key=lambda side: side.columns.value("speedup") or 0.0)


def _method_row(side: Side, groups: Groups) -> MethodRow:
    outputs = side.method.summary.outputs
    return MethodRow(
        name=side.name,
        run=side.label,
        method=side.method.name,
        baseline=side.baseline,
        description=side.method.description,
        vocabulary=side.method.vocabulary,
        figures={name: side.columns.of(members).figures() for name, members in groups.items()},
        compared=outputs.compared if outputs else None,
        identical=outputs.identical if outputs else None,
        near_tied=outputs.near_tied if outputs else None,
        faults=outputs.faults if outputs else None,
    )


def _run_rows(
    loaded: Sequence[Loaded], sides: Sequence[Side], base: Side, across_machines: bool
) -> list[RunRow]:
    """One row a run, with the drift of its plain decoding against that of the reference's run."""
    results = [one.run.results for one in loaded]
    machine, noted = checks.machine_facts(results), checks.noted_facts(results)
    plain = {side.label: side for side in sides if side.baseline}
    home = base.loaded
    rows = []
    for place, one in enumerate(loaded):
        side = plain[one.run.label]
        drift = None
        if one is not home and (one.machine == home.machine or across_machines):
            drift = side.less(plain[base.label], "tokens_per_s")
        rows.append(
            RunRow(
                label=one.run.label,
                folder=str(one.run.folder),
                hash=one.run.content_hash,
                created=one.run.results.created,
                vocabforge=one.run.results.vocabforge,
                command=one.run.results.command,
                machine=one.machine,
                seeds=one.run.results.settings.seeds,
                repeats=one.run.results.settings.repeats,
                answered=one.run.results.answered,
                machine_facts={name: values[place] for name, values in machine.items()},
                noted_facts={name: values[place] for name, values in noted.items()},
                plain_tokens_per_s=side.columns.figures()["tokens_per_s"],
                drift=drift,
                drift_verdict="not judged" if drift is None else verdict_of("tokens_per_s", drift),
            )
        )
    return rows


def _differences(
    sides: Sequence[Side],
    base: Side,
    groups: Groups,
    run_rows: Sequence[RunRow],
    across_machines: bool,
) -> list[DifferenceRow]:
    """Every drafting method against the reference, in every figure that both have, by group."""
    drifted = {row.label for row in run_rows if row.drift_verdict in ("better", "worse")}
    rows = []
    for side in sides:
        if side is base or side.baseline:
            continue
        apart = side.loaded.machine != base.loaded.machine and not across_machines
        for figure, kind in KINDS.items():
            if figure not in side.columns.columns or figure not in base.columns.columns:
                continue
            if kind.timed and apart:
                row = _difference_row(side, base, figure, None, refused=_OTHER_MACHINE)
                rows += [row.model_copy(update={"group": group}) for group in groups]
                continue
            refused = _DRIFT if figure == "tokens_per_s" and side.label in drifted else ""
            rows += [
                _difference_row(side, base, figure, (group, members), refused=refused)
                for group, members in groups.items()
            ]
    return rows


def _difference_row(
    side: Side,
    base: Side,
    figure: str,
    group: tuple[str, NDArray[np.bool_]] | None,
    *,
    refused: str,
) -> DifferenceRow:
    """One difference; without a group none is formed. ``refused``: why there is no verdict, or nothing."""
    found = relative = None
    verdict: Verdict = "not judged"
    if group is not None:
        found = side.less(base, figure, group[1])
        reference = base.columns.of(group[1]).value(figure)
        relative = found.value / reference if found.value is not None and reference else None
        verdict = "not judged" if refused else verdict_of(figure, found)
    return DifferenceRow(
        method=side.name,
        group=OVERALL if group is None else group[0],
        figure=figure,
        difference=found,
        relative=relative,
        paired=side.paired_with(base),
        verdict=verdict,
        reason=refused or _unjudged(found, verdict),
    )


def _unjudged(found: Figure | None, verdict: Verdict) -> str:
    """Why a difference that nothing forbids has no verdict; empty where it has one."""
    if verdict != "not judged":
        return ""
    return "nothing to divide by" if found is None or found.value is None else "fewer than two questions"


def _differing(runs: Sequence[EvaluationRun]) -> dict[str, dict[str, str]]:
    results = [run.results for run in runs]
    facts = checks.machine_facts(results) | checks.noted_facts(results)
    labels = [run.label for run in runs]
    return {name: dict(zip(labels, facts[name], strict=True)) for name in checks.differing(facts)}
