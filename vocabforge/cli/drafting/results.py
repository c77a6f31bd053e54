"""Print the results of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..app import print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ...evaluate.results.schema import Results


def print_results(results: Results, output: Path, *, as_json: bool = False) -> None:
    """Print headline, figures, tasks, costs, and the places where outputs diverge."""
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    from ...core.console import console
    from ...evaluate.reports.tables import (
        count_lines,
        distribution_line,
        divergence_line,
        headline,
        main_tables,
    )

    for table in main_tables(results):
        stdout_console().print(table)
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
