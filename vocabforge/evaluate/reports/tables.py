"""The main tables of an evaluation, the same on a terminal and on its page."""

from __future__ import annotations

from dataclasses import replace

from ...core.console import DataCell, DataTable, percent
from ...decode.counts import phrase_of
from ..results.schema import MethodResults, Results
from .text import (
    divergence_line,
    figure_cell,
    figure_rows,
    headline_method,
    judgements,
    number,
)


def overview_table(results: Results, *, page: bool = False) -> DataTable:
    """One line per method: overall figures, and whether the output is that of plain decoding.

    Args:
        page: also the draft vocabulary and the deviation over runs, for which a terminal is too narrow.
    """
    rows, unit = [], "×" if page else ""
    for place, method in enumerate(results.methods):
        figures = method.summary.overall
        row = [
            DataCell(method.name, look=place),
            figure_cell(figures.accepted_length, spread=page),
            figure_cell(figures.tokens_per_s, 1, spread=page),
            figure_cell(figures.speedup, 2, unit, spread=page),
            _plain(figure_cell(figures.speedup_retokenised, 2, unit), page),
            _plain(figure_cell(figures.forwards_per_token, 3), page),
            _identical(method, page) if place else "baseline",
        ]
        rows.append([*row, _vocabulary(method)] if page else row)
    columns = ["method<", "accepted length", "tokens/s", "speed-up", "speed-up (re-tok.)", "forwards /token"]
    columns += ["identical", *(["draft vocabulary"] if page else [])]
    known = any(method.summary.overall.tokens_per_s.low is not None for method in results.methods)
    best = results.methods.index(headline_method(results)) if len(results.methods) > 1 else None
    return DataTable(
        "" if page else f"{results.target.name} on {results.benchmark.name}",
        columns,
        rows,
        "under a figure: its 95% interval over questions" if known else "",
        strong=best,
    )


def _plain(cell: DataCell, page: bool) -> DataCell:
    return cell if page else replace(cell, under="")


def _identical(method: MethodResults, page: bool) -> DataCell:
    same = method.summary.outputs
    if not method.lossless:
        return DataCell("not lossless", tone="bad")
    if same is None:
        return DataCell("–")
    tone = "bad" if same.faults else "good" if same.identical == same.compared else ""
    return DataCell(f"{same.identical:,} of {same.compared:,}", judgements(same) if page else "", tone)


def _vocabulary(method: MethodResults) -> DataCell:
    found = method.vocabulary
    if found is None:
        return DataCell("–")
    return DataCell(f"{found.size:,}", f"{found.kind}, {found.size / found.of:.1%}")


def category_table(results: Results) -> DataTable:
    """One line per task: accepted length and speed-up of every method but the baseline."""
    rows = []
    for name, (plain, *others) in figure_rows(results):
        cells = [f"{number(one.accepted_length.value)}  {number(one.speedup.value)}x" for one in others]
        rows.append([name, plain.questions, *cells])
    names = [method.name for method in results.methods[1:]]
    return DataTable("accepted length and speed-up by task", ["task<", "questions", *names], rows)


def quality_table(results: Results) -> DataTable | None:
    """One line per method: how many answers are right; None when nothing was scored."""
    rows = []
    for place, method in enumerate(results.methods):
        if (quality := method.summary.quality) is None:
            continue
        rows.append(
            [
                DataCell(method.name, look=place),
                quality.passed,
                quality.attempted,
                figure_cell(quality.rate, 1, "%", scale=100.0),
                percent(quality.strict, 1),
                quality.same_as_baseline,
            ]
        )
    columns = ["method<", "right", "of", "rate", "in the asked form", "verdict as plain's"]
    return DataTable("right answers", columns, rows) if rows else None


def count_lines(results: Results) -> list[str]:
    """One sentence per method whose proposer counts what drafting costs besides target passes."""
    counted = [(method.name, phrase_of(method.summary.counts)) for method in results.methods]
    return [f"{name}: {phrase}" for name, phrase in counted if phrase]


def divergence_lines(results: Results) -> list[str]:
    """One sentence per method whose greedy output is not that of plain decoding."""
    return [line for method in results.methods[1:] if (line := divergence_line(method))]


def fault_methods(results: Results) -> list[str]:
    """Names of the methods with an output that rounding does not explain."""
    return [
        method.name for method in results.methods if method.summary.outputs and method.summary.outputs.faults
    ]
