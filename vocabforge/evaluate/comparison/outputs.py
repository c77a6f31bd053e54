"""Do two evaluations say the same? Greedy outputs of the same method in two runs, by token id."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..answers import MethodRows
from ..compare import compare_outputs
from .checks import is_greedy
from .results import OutputRow
from .runs import SEPARATOR, EvaluationRun
from .sides import Loaded


def output_rows(runs: Sequence[Loaded], home: str, ids: Collection[int]) -> list[OutputRow]:
    """Each other run against the one labelled ``home``, for every method that both have; none where sampled."""
    wanted = set(ids)
    first = next(one for one in runs if one.run.label == home)
    if not is_greedy(first.run.results):
        return []
    rows = []
    for other in runs:
        if other is first:
            continue
        # Plain decoding may have another name in another run; it is the first of both.
        plain, *ours = first.rows
        their_plain, *theirs = other.rows
        pairs = [(plain, their_plain), *((name, name) for name in ours if name in theirs)]
        for one, two in pairs:
            names = (f"{home}{SEPARATOR}{one}", f"{other.run.label}{SEPARATOR}{two}")
            rows.append(_row(names, first.rows[one][0], other.rows[two][0], wanted))
    return rows


def _row(names: tuple[str, str], first: MethodRows, second: MethodRows, ids: set[int]) -> OutputRow:
    """Greedy runs of one evaluation differ in time alone: the first stands for all."""
    sides = [[row for row in rows.details if row["question_id"] in ids] for rows in (first, second)]
    found = compare_outputs(sides[0], sides[1])
    divergence = found.divergences[0] if found.divergences else None
    if divergence is None:
        return OutputRow(first=names[0], second=names[1], compared=found.compared, identical=found.identical)
    return OutputRow(
        first=names[0],
        second=names[1],
        compared=found.compared,
        identical=found.identical,
        question_id=divergence.question_id,
        turn=divergence.turn,
        position=divergence.position,
        expected=divergence.expected,
        got=divergence.got,
    )


def output_warnings(rows: Sequence[OutputRow], runs: Sequence[EvaluationRun]) -> list[str]:
    """One sentence for each pair of plain decodings that differ, and for each method with faults."""
    plain = {f"{run.label}{SEPARATOR}{run.results.methods[0].name}" for run in runs}
    found = [
        f"{row.second} does not say what {row.first} says in {row.compared - row.identical} of {row.compared} "
        f"questions, {place_of(row)}: another machine or version of PyTorch rounds otherwise, or the model differs"
        for row in rows
        if row.first in plain and row.identical < row.compared
    ]
    for run in runs:
        for method in run.results.methods:
            outputs = method.summary.outputs
            if outputs and outputs.faults:
                found.append(
                    f"{run.label}{SEPARATOR}{method.name} is not plain decoding: {outputs.faults} of "
                    f"{outputs.compared} outputs differ by a fault; its figures are not those of the same output"
                )
    return found


def place_of(row: OutputRow) -> str:
    """Where two outputs part first, counted from 1 for people."""
    if row.question_id is None or row.turn is None or row.position is None:
        return "nowhere"
    return f"first at question {row.question_id}, turn {row.turn + 1}, token {row.position + 1}"
