"""What ``vocabforge revocab`` is asked for: the new head, what is measured, the healing run, what is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .app import OverwriteOption
from .decode_options import PromptFormatOption, TokenizerOption, TreeSizes


class Missing(str, Enum):
    """Where rows come from that the drafter does not have."""

    target = "target"
    rows = "rows"
    states = "states"


@dataclass(frozen=True, kw_only=True)
class NewHeadOptions:
    """The drafter, its new draft vocabulary, and where the rows come from that it lacks."""

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
    missing: Annotated[
        Missing,
        typer.Option(
            "--missing",
            help="Rows that the drafter lacks: the target's as they are, or corrected by what its own rows say, or by "
            "its states on every other prompt. A correction is kept only where it accepts more on --prompts.",
        ),
    ] = Missing.target


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured before and after."""

    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="Question file: accepted length before and after, and the tokens of the answers.",
        ),
    ] = None
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--counts", metavar="[NAME=]DIR", help="Frequency table: coverage before and after. Repeatable."
        ),
    ] = None
    limit: Annotated[int, typer.Option("--limit", min=2, help="Prompts decoded at most.")] = 40
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 128
    prompt_format: PromptFormatOption = "auto"
    tree: TreeSizes


@dataclass(frozen=True, kw_only=True)
class HealOptions:
    """The training that may follow."""

    heal: Annotated[
        int | None,
        typer.Option("--heal", min=1, metavar="STEPS", help="Train it on for so many steps, on --data."),
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", help="Texts or conversations to heal on. Repeatable."),
    ] = None
    heal_output: Annotated[
        Path | None,
        typer.Option("--heal-output", help="Folder of the healing run [default: OUTPUT with -heal]."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FormOptions:
    """In what precision everything is written and decoded."""

    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16 [default: as the drafter is stored]."),
    ] = None
    decode_dtype: Annotated[
        str, typer.Option("--decode-dtype", help="Of target and drafter while prompts are decoded.")
    ] = "float32"
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … to decode on.")] = None
    overwrite: OverwriteOption = False
