"""``vocabforge revocab``: another draft vocabulary for a trained drafter, without training."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, print_json
from .revocab_options import FormOptions, HealOptions, MeasureOptions, NewHeadOptions


def revocab(
    head: NewHeadOptions,
    measure: MeasureOptions,
    healing: HealOptions,
    form: FormOptions,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.SUB=VALUE", help="Override keys of the healing run, e.g. optim.lr=1e-5."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prune, extend or re-map a trained drafter's head to another draft vocabulary, without training.

    Rows that the drafter has are kept bit for bit, wherever they move; rows that it lacks come from the target's head.
    Everything found (coverage, drift, accepted length before and after) goes into the manifest.

    Example: `vocabforge revocab --drafter run/drafter --target model/ --vocab subsets/r32768 --prompts
    run/heldout_prompts.jsonl --output small/`
    """
    from ..core.artifact import check_output
    from .revocab_heal import HealRequest
    from .revocab_run import RevocabRequest, revocabularise

    check_output(head.output, overwrite=form.overwrite)
    folder = healing.heal_output or head.output.parent / f"{head.output.name}-heal"
    of = f"{head.drafter} over {head.vocab} (missing rows: {head.missing.value})"
    heal = HealRequest(healing.heal, tuple(healing.data or ()), tuple(overrides or ()), folder, of)
    made = revocabularise(RevocabRequest(head, measure, heal, form))
    if as_json:
        print_json(made.to_json())
    else:
        made.print()
