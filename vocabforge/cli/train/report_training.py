"""``vocabforge report-training``: write a page about a finished or running training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, print_json


def report_training(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Output folder of `train-drafter`.")],
    as_json: JsonOption = False,
) -> None:
    """Write RUN/report.html and RUN/report.json from a training run's logs.

    A finished run has both. Use this command while a run is in progress or after an interruption.

    Example: `vocabforge report-training runs/llama3-8b`
    """
    from ...core.console import say
    from ...train.monitoring.report import write_report
    from ...train.monitoring.report_data import read_run

    path = write_report(run)
    if as_json:
        print_json(read_run(run))
    else:
        say(f"Report: {path}")
