"""``vocabforge tune``: what to draft with on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ...core.config import StrictModel
from ...decode.build.spec import MethodSpec
from ...tune.settings import MethodSpace, TuneSettings
from ..app import JsonOption, echo, print_json, print_line, stdout_console
from ..options.groups import FromModel, option

if TYPE_CHECKING:
    from ...tune.latency.table import LatencyTable
    from ...tune.outcome import TuneResults

Space = Annotated[
    MethodSpace,
    FromModel(
        MethodSpec,
        only=MethodSpace.FIELDS,
        many=MethodSpace.MANY,
        labelled=MethodSpace.LABELLED,
        lists=MethodSpace.LISTS,
        panel="What is searched",
    ),
]


class TuneRequest(StrictModel):
    """Where the run is, and which part of it is wanted."""

    output: Path = option(..., "Folder of the run; an interrupted one is resumed.")
    measure_only: bool = option(
        False, "Only measure the latency of the given draft heads and write latency.json, for --what-if."
    )
    fresh: bool = option(False, "Measure latency again even if it is known for the same space.")


def tune(settings: TuneSettings, space: Space, wanted: TuneRequest, as_json: JsonOption = False) -> None:
    """Choose draft head, draft tree and batch size by measuring tokens/s on this machine.

    Measures the latency of every part of a cycle and the acceptance of every configuration, combines them
    and recommends one. Writes `recipe.yaml` (for `eval --recipe`), `tune.json` with every figure, and a
    self-contained `report.html`. The same command resumes an interrupted run.

    Examples: `vocabforge tune --target model/ --drafter run/drafter --prompts heldout.jsonl --output tuned/` and
    `vocabforge tune ... --ranking counts/ --size 8192,16384,32768 --head ranker/ --shortlist 512,2048 --check 8`
    """
    from ...tune.run import measure_latency_only
    from ...tune.run import tune as run
    from ..options.decoding import wrap_for

    output = wanted.output
    if wanted.measure_only:
        _print_latency(measure_latency_only(output, settings, space), output, as_json)
        return
    results = run(output, settings, space, wrap=wrap_for(False, None, settings.device), fresh=wanted.fresh)
    if as_json:
        print_json(results.model_dump(mode="json"))
    else:
        _print(results, output)


def _print_latency(table: LatencyTable, output: Path, as_json: bool) -> None:
    from ...tune.latency.table import LATENCY

    if as_json:
        print_json(table.model_dump(mode="json"))
        return
    echo(f"Latency: {output / LATENCY}, typical error of cycles {table.error:.1%}, {table.rounds} rounds")
    echo(f"There: vocabforge tune ... --what-if {output / LATENCY}")


def _print(results: TuneResults, output: Path) -> None:
    from ...tune.outcome import RECIPE, REPORT
    from ...tune.report import TERMINAL_ROWS, check_table, headline, methods_table

    out = stdout_console()
    for one in results.recommendations:
        out.print(methods_table(results, one.batch, TERMINAL_ROWS))
    if results.check is not None:
        out.print(check_table(results.check))
    for remark in results.remarks:
        print_line(remark, style="yellow")
    for one in results.recommendations:
        print_line(headline(results, one), style="bold")
    target = output / RECIPE
    print_line(f"Recipe: {target} (vocabforge eval --recipe {target} ...)")
    print_line(f"Report: {output / REPORT}")
