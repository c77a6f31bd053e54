"""Print the results of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .app import print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ..evaluate.results.schema import Results


def print_results(results: Results, output: Path, *, as_json: bool = False) -> None:
    """Print headline, figures, tasks, costs, and the places where outputs diverge."""
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    from ..core.console import console
    from ..evaluate.reports.tables import (
        category_table,
        count_lines,
        distribution_line,
        divergence_line,
        headline,
        load_table,
        overview_table,
        position_table,
    )

    out = stdout_console()
    out.print(overview_table(results))
    if results.baseline and len(results.methods) > 1 and len(results.methods[0].summary.categories) > 1:
        out.print(category_table(results))
    if (positions := position_table(results)) is not None:
        out.print(positions)
    if results.load:
        out.print(load_table(results))
    for line in count_lines(results):
        print_line(line)
    if results.failures:
        left = (
            f"{len(results.failures)} of {results.benchmark.questions} questions were left out (failures in"
        )
        console().print(f"{left} {output / 'results.json'})", style="yellow")
    for method in results.methods[1:]:
        if line := divergence_line(method):
            outputs = method.summary.outputs
            console().print(line, style="red" if outputs and outputs.faults else "yellow")
    for warning in results.warnings:
        console().print(warning, style="yellow")
    for method in results.methods[1:]:
        if line := distribution_line(method):
            console().print(line, style="yellow")
    print_line(headline(results), style="bold")
    if len(results.methods) > 2:
        print_line(f"Methods against each other: vocabforge report {output}")
    print_line(f"Report: {output / 'report.html'}")
