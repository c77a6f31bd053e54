"""``vocabforge revocab``: another draft vocabulary for a trained drafter, without training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, OverwriteOption, print_json
from ..options.decoding import TokenizerOption

FULL = "full"


@dataclass(frozen=True, kw_only=True)
class RevocabRequest:
    """The drafter, its new draft vocabulary, and how it is written."""

    drafter: Annotated[
        Path, typer.Option("--drafter", help="Trained drafter, in any layout; it may come from elsewhere.")
    ]
    vocab: Annotated[
        str,
        typer.Option(
            "--vocab", metavar="DIR|full", help="Subset artefact, or full for the whole vocabulary."
        ),
    ]
    output: Annotated[Path, typer.Option("--output", help="Folder to make.")]
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target [default: the one it was trained with]."),
    ] = None
    tokenizer: TokenizerOption = None
    format_name: Annotated[str, typer.Option("--format", help="Layout to write, as in export.")] = "native"
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16 [default: as the drafter is stored]."),
    ] = None
    overwrite: OverwriteOption = False


def revocab(request: RevocabRequest, as_json: JsonOption = False) -> None:
    """Prune, extend or re-map a trained drafter's head to another draft vocabulary, without training.

    Rows that the drafter has are copied bit for bit, wherever they move; missing rows come from the target's head.
    What changed goes into the manifest.

    Example: `vocabforge revocab --drafter run/drafter --target model/ --vocab subsets/r32768 --output small/`
    """
    from .revocab_run import print_made, revocabularise

    made = revocabularise(request)
    if as_json:
        print_json(made)
    else:
        print_made(made)
