"""``vocabforge report``: compare the methods of an evaluation with one of them."""

from __future__ import annotations

from pathlib import Path

from ...core.config import StrictModel, option
from ...core.errors import DataError, UsageError
from ..app import JsonOption, print_json, print_line, stdout_console


class ReportRequest(StrictModel):
    """The evaluation, and the reference of the comparison."""

    run: Path = option(..., "Output folder of `eval`.", "RUN", positional=True)
    reference: str | None = option(
        None, "Method to compare the others with [default: the fastest drafting method].", "METHOD"
    )
    output: Path | None = option(None, "Also write the report page, with this comparison.", "FILE.html")


def report(asked: ReportRequest, as_json: JsonOption = False) -> None:
    """Compare the methods of an evaluation with one of them. `inspect` prints the tables of `eval` again.

    A ratio counts as a difference only if its 95% interval excludes 1. To compare two drafters, name both in
    a single `eval`, which gives them the same questions in turn.

    Example: `vocabforge report runs/eval --reference eagle3`
    """
    from pydantic_core import to_jsonable_python

    from ...core.console import console
    from ...core.files import atomic_write, form_errors
    from ...core.registry import check_known
    from ...evaluate.reports.evaluation import render_report
    from ...evaluate.reports.ratios import open_evaluation, ratio_line, ratio_table, ratios_to
    from ...evaluate.reports.tables import alarms, best_method

    if asked.output is not None:
        _check_page(asked.output)
    results = open_evaluation(asked.run)
    if asked.reference is not None:
        names = [method.name for method in results.methods]
        check_known(asked.reference, names, "method", source="--reference METHOD")
    with form_errors("the evaluation cannot be read", asked.run, kind=DataError, remedy="evaluate again"):
        best = results.methods[0] if len(results.compared) < 2 else best_method(results)
        reference = asked.reference or best.name
        ratios = ratios_to(reference, results, asked.run)
        table, line = ratio_table(reference, results, ratios), ratio_line(reference, ratios)
        if asked.output is not None:
            atomic_write(asked.output, render_report(results, ratios=[line, table]))
    if as_json:
        print_json(
            {
                "schema_version": 3,
                "target": results.target.name,
                "benchmark": results.benchmark.name,
                "questions": results.answered,
                "reference": reference,
                "ratios": to_jsonable_python(ratios),
                "notes": alarms(results),
            }
        )
        return
    stdout_console().print(table)
    print_line(line)
    for alarm in alarms(results):
        console().print(alarm, style="yellow")
    if asked.output is not None:
        print_line(f"Report: {asked.output}")


def _check_page(output: Path) -> None:
    from ...core.files import check_output_file

    if output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(
            "the page needs the name of an HTML file",
            got=output,
            expected="a name that ends with .html",
            source="--output FILE.html",
        )
    check_output_file(output)
