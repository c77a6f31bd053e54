"""Methods of several evaluations over the questions that all of them answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.errors import MismatchError
from ..answers import MethodRows
from ..results import Figure, MethodResults
from ..summary import OVERALL, task_groups
from .checks import machines, same_streams
from .figures import MethodColumns, difference, method_columns, question_ids
from .quality import verdicts_of
from .runs import SEPARATOR, EvaluationRun


@dataclass(frozen=True)
class Loaded:
    """A run with its rows.

    Attributes:
        rows: method -> its rows, run by run; plain decoding first.
        machine: a number, the same for the same machine.
    """

    run: EvaluationRun
    rows: Mapping[str, Sequence[MethodRows]]
    machine: int


@dataclass(frozen=True)
class Side:
    """One method of one run.

    Attributes:
        name: ``RUN:METHOD``.
        baseline: whether it is its run's plain decoding.
    """

    name: str
    loaded: Loaded
    method: MethodResults
    baseline: bool
    columns: MethodColumns

    @property
    def label(self) -> str:
        """Of its run."""
        return self.loaded.run.label

    def paired_with(self, other: Side) -> bool:
        """Whether both drew the same random numbers."""
        return same_streams(self.loaded.run.results, other.loaded.run.results)

    def less(self, other: Side, figure: str, members: NDArray[np.bool_] | None = None) -> Figure:
        """This one's figure less the other's, with its interval; ``members``: (Q,) mask of the questions."""
        pair = [side.columns if members is None else side.columns.of(members) for side in (self, other)]
        return difference(pair[0], pair[1], figure, paired=self.paired_with(other))


def load(runs: Sequence[EvaluationRun]) -> list[Loaded]:
    """All runs with their rows.

    Raises:
        DataError: rows that cannot be read.
    """
    numbers = machines([run.results for run in runs])
    return [
        Loaded(run, {method.name: run.rows(method.name) for method in run.results.methods}, number)
        for run, number in zip(runs, numbers, strict=True)
    ]


def common_questions(loaded: Sequence[Loaded]) -> list[int]:
    """The questions answered by every method of every run, ascending.

    Raises:
        MismatchError: there is none.
    """
    answered = [question_ids(rows) for one in loaded for rows in one.rows.values()]
    ids = sorted(set.intersection(*answered))
    if not ids:
        raise MismatchError(
            "the runs share no question that all their methods answered",
            got="; ".join(f"{one.run.label}: {one.run.results.answered} answered" for one in loaded),
            remedy="failures.jsonl in each folder says what was left out, and why",
        )
    return ids


def question_groups(loaded: Loaded, ids: Sequence[int]) -> dict[str, NDArray[np.bool_]]:
    """Group -> (Q,) mask over ``ids``; ``overall`` first, then the tasks."""
    plain = next(iter(loaded.rows.values()))
    categories = {row["question_id"]: row["category"] for row in plain[0].answers}
    names = np.array([categories[number] for number in ids])
    groups = {OVERALL: np.ones(len(ids), dtype=bool)}
    for task, members in task_groups([str(name) for name in names]).items():
        groups[task] = np.isin(names, members)
    return groups


def make_sides(loaded: Loaded, ids: Sequence[int]) -> list[Side]:
    """All methods of a run, its plain decoding first."""
    plain = loaded.run.results.methods[0]
    return [
        Side(
            name=f"{loaded.run.label}{SEPARATOR}{method.name}",
            loaded=loaded,
            method=method,
            baseline=method is plain,
            columns=method_columns(
                loaded.rows[method.name], loaded.rows[plain.name], ids, verdicts_of(loaded.run, method)
            ),
        )
        for method in loaded.run.results.methods
    ]
