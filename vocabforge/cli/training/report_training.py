"""``vocabforge report-training``: plot the figures of a finished or running training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, print_json, print_line, stdout_console


def report_training(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of `train-drafter`.")],
    as_json: JsonOption = False,
) -> None:
    """Write RUN/report.png and RUN/report.json from a training run's logs, and print the last evaluation.

    A finished run has both. Use this command while a run is in progress or after an interruption.

    Example: `vocabforge report-training runs/llama3-8b`
    """
    from ...train.monitoring.report import report_tables, run_line, write_report

    path, results = write_report(run)
    if as_json:
        print_json(results)
        return
    print_line(run_line(results))
    for table in report_tables(results):
        stdout_console().print(table)
    print_line(f"Plot: {path}")
