"""``vocabforge study``: every draft vocabulary side by side, at a real vocabulary size."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import JsonOption, print_json
from .train.plan_tables import print_plan

RECIPE = "study/study.yaml"


def study(
    stages: Annotated[
        list[str],
        typer.Argument(
            metavar="STAGE... [KEY.SUB=VALUE...]",
            help="data, target, answers, vocab, drafters, replay, check, times, report, or all; overrides of the "
            "configuration may follow.",
        ),
    ],
    size: Annotated[
        str,
        typer.Option("--size", help="Size of the file: `ci` (seconds), `cpu` (an hour on two cores), `gpu`."),
    ] = "cpu",
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The study [default: recipes/study/study.yaml]."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Folder of everything [default: runs/study-SIZE]."),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option("--seed", help="Stages drafters and replay: this seed only. Repeatable."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan", help="Print the stages, then stop; with --json the configuration too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a target and drafters, and compare all draft vocabularies: accepted length and time.

    Stages are run in their order; what is finished is not made again, and an interrupted stage goes on where it
    stopped. The report is in OUTPUT/report.

    Example: `vocabforge study all --size cpu`, or one by one: `vocabforge study data target --size cpu`
    """
    from ..core.files import read_json
    from ..study.config import load_study
    from ..study.stages import ALL, STAGES, check_names, perform
    from .demo import recipe

    names = [word for word in stages if "=" not in word]
    overrides = [word for word in stages if "=" in word]
    settings = load_study(config or recipe(RECIPE), size, overrides)
    if output is not None:
        settings = settings.model_copy(update={"output": output})
    wanted = list(STAGES) if ALL in names else names
    check_names(wanted)
    if plan_only:
        about = {name: stage.about for name, stage in STAGES.items() if name in wanted}
        facts = {"stages": about, "config": settings.model_dump(mode="json")}
        print_plan("study", facts, as_json=as_json)
        return
    perform(settings, names, seed)
    if as_json:
        record = read_json(settings.output / "stages.json", "record of stages")
        print_json({"output": str(settings.output), "stages": record})
