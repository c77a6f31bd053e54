"""``vocabforge tune``: find the fastest drafting method on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ...core.config import StrictModel, option
from ...tune.settings import MethodSpace, TuneSettings
from ..app import JsonOption, print_json, print_line, stdout_console
from ..option_groups import FromModel

if TYPE_CHECKING:
    from ...tune.results import TuneResults

Space = Annotated[MethodSpace, FromModel(MethodSpace, panel="What is searched")]


class TuneRequest(StrictModel):
    """Location of the run."""

    output: Path = option(..., "Folder of the run; an interrupted one is resumed.")
    fresh: bool = option(False, "Discard earlier measurements.")


def tune(settings: TuneSettings, space: Space, wanted: TuneRequest, as_json: JsonOption = False) -> None:
    """Choose draft head and draft tree by measuring tokens/s on this machine.

    Decodes with every configuration and with plain decoding in turns, the better half on more prompts, and
    recommends the fastest. Writes `recipe.yaml` (for `eval --recipe`) and `tune.json` with every figure. The
    same command resumes an interrupted run.

    Examples: `vocabforge tune --target model/ --drafter run/drafter --prompts heldout.jsonl --output tuned/`
    and `vocabforge tune ... --vocab 8k=subsets/r8192 --vocab 32k=subsets/r32768 --head ranker/ --shortlist 512,2048`
    """
    from ...tune.run import tune as run
    from .decoding_options import wrap_for

    output = wanted.output
    results = run(output, settings, space, wrap=wrap_for(False, None, settings.device), fresh=wanted.fresh)
    if as_json:
        print_json(results.model_dump(mode="json"))
    else:
        _print(results, output)


def _print(results: TuneResults, output: Path) -> None:
    from ...tune.results import RECIPE, TUNE, headline, methods_table

    stdout_console().print(methods_table(results))
    for remark in results.remarks:
        print_line(remark, style="yellow")
    print_line(headline(results.recommendation), style="bold")
    target = output / RECIPE
    print_line(f"Recipe: {target} (vocabforge eval --recipe {target} ...)")
    print_line(f"Figures: {output / TUNE}")
