"""``vocabforge revocab``: change a trained drafter's draft vocabulary without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.config import ResultOptions
from ...core.console import say
from ...export.request import RevocabRequest
from ..app import print_json


def revocab(request: RevocabRequest, ending: ResultOptions) -> None:
    """Prune, extend or re-map a trained drafter's head to another draft vocabulary, without training.

    Existing rows are copied bit for bit; missing rows come from the target's head. The manifest records what
    changed.

    Example: `vocabforge revocab --drafter run/drafter --target model/ --vocab subsets/r32768 --output small/`
    """
    from ...export.revocab import run_revocab

    made = run_revocab(request, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(made)
    else:
        _print(made)


def _print(made: Mapping[str, Any]) -> None:
    head, drift, eos = made["head"], made["drift"], made["eos"]
    say(f"{head['kept']:,} rows kept, {head['dropped']:,} dropped, {head['added']:,} added.")
    if not head["own_after"]:
        say("Every row is the target's: the drafter shares the target's head.")
    if drift is not None and head["added"]:
        say(
            f"Added rows are the target's. The drafter's own rows differ from the target's: median cosine "
            f"{drift['cosine']:.3f}, {drift['scale']:.2f} times as long. If either is far from 1, "
            f"continue training: train-drafter drafter.init={made['output']}."
        )
    if eos["lost"]:
        say(
            f"Warning: the draft vocabulary no longer has the end tokens {', '.join(map(str, eos['lost']))}: the last "
            "cycle of every answer is wasted. Use a draft vocabulary with them (select-vocab --target forces "
            "them)."
        )
    elif eos["outside"]:
        say(f"End tokens outside the draft vocabulary, as before: {', '.join(map(str, eos['outside']))}.")
    say(f"Wrote {made['output']} ({made['format']}, {head['after']:,} draft tokens, {made['dtype']})")
