"""The tables that end an evaluation on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..decode.drafting_counts import phrase_of
from .report_text import divergence_line, figure_of, group_of, number, row_keys
from .results import Results
from .wide_tables import Name, TaskTable, figure_cell, simple_table

if TYPE_CHECKING:
    from rich.table import Table


def overview_table(results: Results) -> Table:
    """One line per method: overall figures and whether the output is that of plain decoding."""
    table = simple_table(f"{results.target.name} on {results.benchmark.name}")
    table.add_column("method")
    for column in (
        "accepted\nlength",
        "tokens/s",
        "speed-up",
        "speed-up\n(re-tok.)",
        "forwards\n/token",
        "identical",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for place, method in enumerate(results.methods):
        figures, outputs = method.summary.overall, method.summary.outputs
        same = "–" if outputs is None else f"{outputs.identical} of {outputs.compared}"
        same = same if method.lossless else "not lossless"
        table.add_row(
            Name(method.name),
            figure_cell(figures.accepted_length),
            figure_cell(figures.tokens_per_s, 1),
            figure_cell(figures.speedup) if place else number(figures.speedup.value),
            number(figures.speedup_retokenised.value),
            number(figures.forwards_per_token.value, 3),
            same if place else "baseline",
        )
    if any(method.summary.overall.tokens_per_s.low is not None for method in results.methods):
        table.caption = "under a figure: its 95% interval over questions"
        table.caption_justify = "left"
    return table


def category_table(results: Results) -> TaskTable:
    """One line per task: accepted length and speed-up of every method but the baseline."""
    keys = row_keys(results)
    columns = []
    for method in results.methods[1:]:
        cells = []
        for key in keys:
            length, speedup = (figure_of(method, key, name) for name in ("accepted_length", "speedup"))
            cells.append(f"{number(length.value)}  {number(speedup.value)}x")
        columns.append((method.name, cells))
    rows = [(key[2], str(group_of(results.methods[0], key).questions)) for key in keys]
    return TaskTable("accepted length and speed-up by task", rows, columns)


def quality_table(results: Results) -> Table | None:
    """One line per method: how many answers are right; None where nothing was scored."""
    scored = [method for method in results.methods if method.summary.quality is not None]
    if not scored:
        return None
    table = simple_table("right answers")
    table.add_column("method")
    for column in ("right", "of", "rate, %", "in the asked\nform, %", "verdict as\nplain's"):
        table.add_column(column, justify="right", no_wrap=True)
    for method in scored:
        quality = method.summary.quality
        assert quality is not None  # chosen above
        rate = quality.rate.model_copy(
            update={
                name: None if (value := getattr(quality.rate, name)) is None else 100 * value
                for name in ("value", "sd", "low", "high")
            }
        )
        table.add_row(
            Name(method.name),
            f"{quality.passed:,}",
            f"{quality.attempted:,}",
            figure_cell(rate, 1),
            "–" if quality.strict is None else f"{100 * quality.strict:.1f}",
            "–" if quality.same_as_baseline is None else f"{quality.same_as_baseline:,}",
        )
    return table


def count_lines(results: Results) -> list[str]:
    """One sentence per method whose proposer counts what drafting costs it beside passes of the target."""
    return [
        f"{method.name}: {phrase_of(method.summary.counts)}"
        for method in results.methods
        if phrase_of(method.summary.counts)
    ]


def divergence_lines(results: Results) -> list[str]:
    """One sentence per method whose greedy output is not that of plain decoding."""
    return [line for method in results.methods[1:] if (line := divergence_line(method))]


def fault_methods(results: Results) -> list[str]:
    """Names of the methods with an output that rounding does not explain."""
    return [
        method.name for method in results.methods if method.summary.outputs and method.summary.outputs.faults
    ]
