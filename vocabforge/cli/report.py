"""``vocabforge report``: compare evaluations, or the methods of one evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import StrictModel, option
from ..core.errors import UsageError
from .app import JsonOption, print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ..evaluate.comparison.compare import RunComparison


class ReportRequest(StrictModel):
    """The evaluations, and the reference of the comparison."""

    runs: tuple[str, ...] = option(
        ...,
        "Output folders of `eval`; without a label, the folder's name is one.",
        "[LABEL=]RUN …",
        positional=True,
    )
    reference: str | None = option(
        None,
        "Baseline of all comparisons [default: the method of the first run with the largest speed-up]; for "
        "a single run, METHOD is enough.",
        "RUN:METHOD",
    )
    output: Path | None = option(None, "Also write one self-contained page.", "FILE.html")


def report(asked: ReportRequest, as_json: JsonOption = False) -> None:
    """Compare evaluations method by method, or the methods of one. `inspect` prints the tables of one again.

    Figures cover the questions that every run answered. A ratio counts as a difference only if its 95%
    interval excludes 1. Runs with another target, questions, temperature, prompt format, system message or
    limit are refused with the reasons. Each method's speed-up is over plain decoding of the same run.

    Examples: `vocabforge report before=runs/eval-1 after=runs/eval-2 --output comparison.html`,
    `vocabforge report runs/eval-1 --reference eagle3`
    """
    from ..evaluate.comparison.compare import compare_runs
    from ..evaluate.comparison.runs import open_runs

    output, reference = asked.output, asked.reference
    if output is not None:
        _check_page(output)
    opened = open_runs(asked.runs)
    if len(opened) == 1 and reference is not None:
        reference = f"{opened[0].label}:{reference.removeprefix(f'{opened[0].label}:')}"
    comparison = compare_runs(opened, reference=reference)
    if output is not None:
        from ..core.files import atomic_write
        from ..evaluate.comparison.report import render_comparison

        atomic_write(output, render_comparison(comparison))
    if as_json:
        print_json(comparison.model_dump(mode="json"))
    else:
        _print_comparison(comparison, output)


def _check_page(output: Path) -> None:
    """Raise early if the page could not be written or would replace another kind of file."""
    from ..core.files import check_output_file

    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            "the page needs the name of an HTML file",
            got=output,
            expected="a name that ends with .html",
            source="--output FILE.html",
        )
    check_output_file(output)


def _print_comparison(comparison: RunComparison, output: Path | None) -> None:
    from ..core.console import console
    from ..evaluate.comparison.report import comparison_table, headline

    stdout_console().print(comparison_table(comparison))
    print_line(headline(comparison))
    for line in comparison.notes:
        console().print(f"Warning: {line}", style="yellow")
    if output is not None:
        print_line(f"Report: {output}")
