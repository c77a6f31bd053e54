"""``vocabforge study``: every draft vocabulary side by side, at a real vocabulary size."""

from __future__ import annotations

from pathlib import Path

from ..core.config import StrictModel
from .app import JsonOption, PlanOption, print_json
from .options.groups import option
from .train.plan_tables import print_plan

RECIPE = Path("study")


class StudyRequest(StrictModel):
    """Which stages, of which study."""

    stages: tuple[str, ...] = option(
        ...,
        "data, target, answers, vocab, drafters, replay, check, report, or all; overrides of the configuration "
        "may follow.",
        "STAGE... [KEY.SUB=VALUE...]",
        positional=True,
    )
    size: str = option("cpu", "Size of the file: `ci` (seconds), `cpu` (an hour on two cores), `gpu`.")
    config: Path | None = option(None, "The study [default: the recipe study].", short="-c")
    output: Path | None = option(None, "Output folder [default: runs/study-SIZE].", "DIR")


def study(asked: StudyRequest, plan_only: PlanOption = False, as_json: JsonOption = False) -> None:
    """Train a target and drafters, and compare the accepted lengths of all draft vocabularies.

    Stages run in order. Finished stages are skipped and interrupted training resumes. The report is in OUTPUT/report.

    Example: `vocabforge study all --size cpu`, or one by one: `vocabforge study data target --size cpu`
    """
    from ..core.files import read_json
    from ..study.config import load_study
    from ..study.stages.run import ALL, STAGES, check_names, perform

    names = [word for word in asked.stages if "=" not in word]
    overrides = [word for word in asked.stages if "=" in word]
    settings = load_study(asked.config or RECIPE, asked.size, overrides)
    if asked.output is not None:
        settings = settings.model_copy(update={"output": asked.output})
    wanted = list(STAGES) if ALL in names else names
    check_names(wanted)
    if plan_only:
        about = {name: stage.about for name, stage in STAGES.items() if name in wanted}
        facts = {"stages": about, "config": settings.model_dump(mode="json")}
        print_plan("study", facts, as_json=as_json)
        return
    perform(settings, names)
    if as_json:
        record = read_json(settings.output / "stages.json", "record of stages")
        print_json({"output": str(settings.output), "stages": record})
