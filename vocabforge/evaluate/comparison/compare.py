"""Several evaluations side by side: the same questions, each method against a reference, what is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ... import __version__
from ...core.errors import MismatchError, UsageError, did_you_mean
from ..identity.compare import compare_outputs
from ..results.answers import MethodRows
from ..results.schema import Figure, MethodResults
from ..results.summary import OVERALL, task_groups
from . import checks
from .figures import (
    KINDS,
    Columns,
    difference,
    figures_of,
    method_columns,
    read_verdicts,
    value_of,
    verdict_of,
)
from .results import DifferenceRow, MethodRow, OutputRow, RunComparison, RunRow
from .runs import SEPARATOR, EvaluationRun

Groups = Mapping[str, NDArray[np.bool_]]

_OTHER_MACHINE = "measured on another machine"
_DRIFT = "the machine was not equally fast"


@dataclass(frozen=True, eq=False)
class ComparedMethod:
    """One method of one run over the questions that every method of every run answered.

    Attributes:
        name: ``RUN:METHOD``.
        machine: a number, the same for the same machine.
        baseline: whether it is its run's plain decoding.
        rows: of the whole run, run by run.
    """

    name: str
    run: EvaluationRun
    machine: int
    method: MethodResults
    baseline: bool
    rows: Sequence[MethodRows]
    columns: Columns

    def of(self, members: NDArray[np.bool_]) -> Columns:
        """Only the questions of a mask (Q,)."""
        return {name: values[members] for name, values in self.columns.items()}

    def less(self, other: ComparedMethod, figure: str, members: NDArray[np.bool_]) -> Figure:
        """This method's figure less the other's, with its interval."""
        return difference(self.of(members), other.of(members), figure, paired=self.paired_with(other))

    def paired_with(self, other: ComparedMethod) -> bool:
        """Whether both drew the same random numbers."""
        return checks.same_streams(self.run.results, other.run.results)


def compare_runs(
    runs: Sequence[EvaluationRun], *, reference: str | None = None, across_machines: bool = False
) -> RunComparison:
    """Compare evaluations over the questions that all of them answered.

    Args:
        runs: of ``open_runs``.
        reference: ``RUN:METHOD``; None: the method of the first run with the largest speed-up.
        across_machines: form differences of times measured on different machines, too.

    Raises:
        MismatchError: they differ in what decides the figures, or share no answered question.
        UsageError: no such reference.
        DataError: rows that cannot be read.
    """
    checks.refuse_incomparable(runs)
    names = [f"{run.label}{SEPARATOR}{method.name}" for run in runs for method in run.results.methods]
    if reference is not None and reference not in names:
        raise UsageError(
            "there is no such method to compare with",
            got=reference,
            expected=", ".join(names),
            source="--reference RUN:METHOD",
            remedy=did_you_mean(reference, names),
        )
    methods, groups = _load(runs)
    base = _reference(methods, runs[0], reference)
    results = [run.results for run in runs]
    rows = _run_rows(runs, methods, base, groups[OVERALL], across_machines)
    questions = int(groups[OVERALL].sum())
    outputs = _output_rows(methods, base.run.label)
    machine = checks.machine_facts(results) | checks.noted_facts(results)
    return RunComparison(
        vocabforge=__version__,
        target=results[0].target.name,
        benchmark=results[0].benchmark.name,
        greedy=checks.is_greedy(results[0]),
        settings={name: values[0] for name, values in checks.deciding_facts(results).items()},
        questions=questions,
        groups={name: int(members.sum()) for name, members in groups.items()},
        reference=base.name,
        across_machines=across_machines,
        runs=rows,
        methods=[_method_row(one, groups) for one in methods],
        differences=_differences(methods, base, groups, rows, across_machines),
        outputs=outputs,
        differing={
            name: dict(zip([run.label for run in runs], machine[name], strict=True))
            for name in checks.differing(machine)
        },
        warnings=checks.run_warnings(runs, rows, outputs, base.run.label, questions, across_machines),
    )


def _load(runs: Sequence[EvaluationRun]) -> tuple[list[ComparedMethod], Groups]:
    """All methods, each run's plain decoding first, and the groups of the questions that all of them answered."""
    rows = {(run.label, method.name): run.rows(method.name) for run in runs for method in run.results.methods}
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
            remedy="failures.jsonl in each folder says what was left out, and why",
        )
    categories = {row["question_id"]: row["category"] for row in next(iter(rows.values()))[0].answers}
    names = np.array([categories[number] for number in ids])
    groups = {OVERALL: np.ones(len(ids), dtype=bool)}
    for task, members in task_groups([str(name) for name in names]).items():
        groups[task] = np.isin(names, members)
    numbers, methods = checks.machines([run.results for run in runs]), []
    for run, number in zip(runs, numbers, strict=True):
        plain = run.results.methods[0]
        for method in run.results.methods:
            quality, own = method.summary.quality, rows[run.label, method.name]
            verdicts = [] if quality is None else [read_verdicts(run.folder / file) for file in quality.files]
            columns = method_columns(own, rows[run.label, plain.name], ids, verdicts)
            name = f"{run.label}{SEPARATOR}{method.name}"
            shared = [_only(one, set(ids)) for one in own]
            methods.append(ComparedMethod(name, run, number, method, method is plain, shared, columns))
    return methods, groups


def _only(rows: MethodRows, ids: set[int]) -> MethodRows:
    return MethodRows(
        *([row for row in kind if row["question_id"] in ids] for kind in (rows.answers, rows.details))
    )


def _reference(methods: Sequence[ComparedMethod], first: EvaluationRun, wanted: str | None) -> ComparedMethod:
    """The method asked for, else the first run's largest speed-up; its plain decoding if it has nothing else."""
    if wanted is not None:
        return next(one for one in methods if one.name == wanted)
    own = [one for one in methods if one.run is first]
    return max(own[1:] or own, key=lambda one: value_of(one.columns, "speedup") or 0.0)


def _method_row(one: ComparedMethod, groups: Groups) -> MethodRow:
    outputs = one.method.summary.outputs
    return MethodRow(
        name=one.name,
        run=one.run.label,
        method=one.method.name,
        baseline=one.baseline,
        description=one.method.description,
        vocabulary=one.method.vocabulary,
        figures={name: figures_of(one.of(members)) for name, members in groups.items()},
        compared=outputs.compared if outputs else None,
        identical=outputs.identical if outputs else None,
        near_tied=outputs.near_tied if outputs else None,
        faults=outputs.faults if outputs else None,
    )


def _run_rows(
    runs: Sequence[EvaluationRun],
    methods: Sequence[ComparedMethod],
    base: ComparedMethod,
    everything: NDArray[np.bool_],
    across_machines: bool,
) -> list[RunRow]:
    """One row a run, with the drift of its plain decoding against that of the reference's run."""
    results = [run.results for run in runs]
    machine, noted = checks.machine_facts(results), checks.noted_facts(results)
    plain = {one.run.label: one for one in methods if one.baseline}
    rows = []
    for place, run in enumerate(runs):
        one, drift = plain[run.label], None
        if run is not base.run and (one.machine == base.machine or across_machines):
            drift = one.less(plain[base.run.label], "tokens_per_s", everything)
        rows.append(
            RunRow(
                label=run.label,
                folder=str(run.folder),
                hash=run.content_hash,
                created=run.results.created,
                vocabforge=run.results.vocabforge,
                command=run.results.command,
                machine=one.machine,
                seeds=run.results.settings.seeds,
                repeats=run.results.settings.repeats,
                answered=run.results.answered,
                machine_facts={name: values[place] for name, values in machine.items()},
                noted_facts={name: values[place] for name, values in noted.items()},
                plain_tokens_per_s=figures_of({"tokens_per_s": one.columns["tokens_per_s"]})["tokens_per_s"],
                drift=drift,
                drift_verdict=verdict_of("tokens_per_s", drift),
            )
        )
    return rows


def _differences(
    methods: Sequence[ComparedMethod],
    base: ComparedMethod,
    groups: Groups,
    run_rows: Sequence[RunRow],
    across_machines: bool,
) -> list[DifferenceRow]:
    """Every drafting method against the reference, in every figure that both have, by group."""
    drifted = {row.label for row in run_rows if row.drift_verdict in ("better", "worse")}
    rows = []
    for one in methods:
        if one is base or one.baseline:
            continue
        apart = one.machine != base.machine and not across_machines
        for figure, kind in KINDS.items():
            if figure not in one.columns or figure not in base.columns:
                continue
            refused = _DRIFT if figure == "tokens_per_s" and one.run.label in drifted else ""
            refused = _OTHER_MACHINE if kind.timed and apart else refused
            for group, members in groups.items():
                # Between machines no difference of times is formed; after a drift one is, without a verdict.
                found = None if refused == _OTHER_MACHINE else one.less(base, figure, members)
                reference = value_of(base.of(members), figure)
                verdict = "not judged" if refused else verdict_of(figure, found)
                value = None if found is None else found.value
                why = "nothing to divide by" if value is None else "fewer than two questions"
                rows.append(
                    DifferenceRow(
                        method=one.name,
                        group=group,
                        figure=figure,
                        difference=found,
                        relative=value / reference if value is not None and reference else None,
                        paired=one.paired_with(base),
                        verdict=verdict,
                        reason=refused or (why if verdict == "not judged" else ""),
                    )
                )
    return rows


def _output_rows(methods: Sequence[ComparedMethod], home: str) -> list[OutputRow]:
    """Greedy outputs of each other run against the reference's run, for every method that both have."""
    ours = [one for one in methods if one.run.label == home]
    rows = []
    for other in methods:
        # Plain decoding may have another name in another run.
        one = next((one for one in ours if _same_method(one, other)), None)
        if other in ours or one is None or not checks.is_greedy(one.run.results):
            continue
        # Greedy runs of one evaluation differ in time alone: the first stands for all.
        found = compare_outputs(one.rows[0].details, other.rows[0].details)
        first = found.divergences[0] if found.divergences else None
        place = (
            {}
            if first is None
            else first.model_dump(include={"question_id", "turn", "position", "expected", "got"})
        )
        rows.append(
            OutputRow(
                first=one.name, second=other.name, compared=found.compared, identical=found.identical, **place
            )
        )
    return rows


def _same_method(one: ComparedMethod, other: ComparedMethod) -> bool:
    return one.baseline == other.baseline and (one.baseline or one.method.name == other.method.name)
