"""Compare the methods of an evaluation with one of them, question by question.

A ratio's interval is bootstrapped over questions, with the same draws for both methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...core.artifact import open_artifact
from ...core.console import DataCell, DataTable
from ...core.errors import ArtifactError
from ..results.answers import read_method
from ..results.intervals import Verdict, estimate, ratio_of_ratios, verdict_of
from ..results.schema import ARTIFACT_KIND, RESULTS, Figure, Results, read_results
from ..results.summary import FORMULAS, OVERALL, question_columns, task_groups
from .tables import figure_cell, interval, number

# method -> group of questions (overall, then tasks) -> figure -> ratio to the reference
Ratios = Mapping[str, Mapping[str, Mapping[str, Figure]]]

# Verdict -> mark and tone in the table, wording of the summary.
_WORDS: dict[Verdict, tuple[str, str, str]] = {
    "better": (" ▲", "good", "faster"),
    "worse": (" ▼", "bad", "slower"),
    "no difference shown": (" =", "", "not shown to differ in speed"),
    "not compared": ("", "", "not compared in speed"),
}


def open_evaluation(folder: Path) -> Results:
    """Read the results of a verified evaluation whose answer and detail files are in the folder.

    Raises:
        ArtifactError: the folder is not an evaluation, was modified, or its results name other files.
        DataError: the results are of another version or violate their schema.
    """
    artifact, results = open_artifact(folder, ARTIFACT_KIND), read_results(folder)
    files = [part for method in results.methods for part in (method.answers, method.details)]
    known = all(file in artifact.manifest["files"] for part in files for file in part)
    if not known or len({len(part) for part in files}) != 1:
        raise ArtifactError(
            "the results do not fit their evaluation",
            expected="for each method the same number of answer and detail files of this folder",
            source=folder / RESULTS,
            remedy="evaluate again",
        )
    return results


def ratios_to(reference: str, results: Results, folder: Path) -> Ratios:
    """Return the ratios of all methods, except plain decoding and the reference, to the reference.

    Args:
        folder: the evaluation's folder, with the answers and details of ``results``.

    Returns:
        ratios of ``accepted_length`` and ``tokens_per_s``, the second averaged over runs.

    Raises:
        DataError: a row cannot be read.
    """
    rows = {method.name: read_method(folder, method.answers, method.details) for method in results.methods}
    answers = rows[reference][0].answers
    names = np.array([row["category"] for row in answers], dtype=np.str_)
    groups = {OVERALL: np.ones(len(names), dtype=bool)}
    groups |= {task: np.isin(names, members) for task, members in task_groups(names.tolist()).items()}
    # The speed-up over the reference is the ratio of tokens/s.
    columns = {
        name: question_columns([row["question_id"] for row in answers], own, rows[reference])
        for name, own in rows.items()
    }
    base = columns[reference]["accepted_length"]

    def ratio_figures(name: str, group: str) -> dict[str, Figure]:
        lengths = np.concatenate([columns[name]["accepted_length"], base], axis=-1)[groups[group]]
        return {
            "accepted_length": estimate(lengths, ratio_of_ratios, pooled=True),
            "tokens_per_s": estimate(columns[name]["speedup"][groups[group]], *FORMULAS["speedup"]),
        }

    return {
        method.name: {group: ratio_figures(method.name, group) for group in groups}
        for method in results.compared
        if method.name != reference
    }


def ratio_table(reference: str, results: Results, ratios: Ratios) -> DataTable:
    """Return a table of every method by task: figures and ratios to the reference with 95% intervals."""
    rows: list[list[object]] = []
    tasks = results.methods[0].summary.tasks
    for group in (OVERALL, *(tasks if len(tasks) > 1 else ())):
        for look, method in enumerate(results.methods):
            if group != OVERALL and results.baseline and look == 0:
                continue
            figures = method.summary.overall if group == OVERALL else method.summary.tasks[group]
            compared = ratios.get(method.name, {}).get(group, {})
            rows.append(
                [
                    DataCell(method.name, look=look),
                    DataCell(group, f"{figures.questions:,} asked"),
                    _cell(figures.accepted_length, 2, compared.get("accepted_length")),
                    _cell(figures.tokens_per_s, 1, compared.get("tokens_per_s")),
                    DataCell(number(figures.speedup.value)),
                ]
            )
    note = (
        "Under a figure: its ratio to the reference with the 95% interval over questions, paired. ▲ more, ▼ less: the "
        "interval excludes 1; = it does not. Of twenty rows without a true difference, about one shows one by chance."
    )
    return DataTable(
        f"{results.target.name} on {results.benchmark.name}: ratios to {reference}",
        ["method<", "task<", "accepted length", "tokens/s", "speed-up"],
        rows,
        note,
        strong=[method.name for method in results.methods].index(reference),
    )


def _cell(figure: Figure, digits: int, compared: Figure | None) -> DataCell:
    text = figure_cell(figure, digits).text
    if compared is None or compared.value is None:
        return DataCell(text)
    mark, tone, _ = _WORDS[verdict_of(compared)]
    between = interval(compared)
    return DataCell(text + mark, f"×{number(compared.value)}" + (f" [{between}]" if between else ""), tone)


def ratio_line(reference: str, ratios: Ratios) -> str:
    """Return a sentence on the methods that are faster and slower than the reference."""
    said: dict[Verdict, list[str]] = {}
    for name, groups in ratios.items():
        said.setdefault(verdict_of(groups[OVERALL]["tokens_per_s"]), []).append(name)
    parts = [
        f"{', '.join(said[verdict])} {'is' if len(said[verdict]) == 1 else 'are'} {words}"
        for verdict, (*_, words) in _WORDS.items()
        if verdict in said
    ]
    return f"Against {reference}: {'; '.join(parts) or 'nothing to compare'}."
