"""``vocabforge revocab``: another draft vocabulary for a trained drafter, without training."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from . import decode_options as decoding
from .app import JsonOption, OverwriteOption, print_json


class Missing(str, Enum):
    """Where rows come from that the drafter does not have."""

    target = "target"
    rows = "rows"
    states = "states"


DrafterOption = Annotated[
    Path, typer.Option("--drafter", help="Trained drafter, in any layout; it may come from elsewhere.")
]
VocabOption = Annotated[
    str,
    typer.Option("--vocab", metavar="DIR|full", help="Subset artefact, or full for the whole vocabulary."),
]
MissingOption = Annotated[
    Missing,
    typer.Option(
        "--missing",
        help="Rows that the drafter lacks: the target's as they are, or corrected by what its own rows say, or by its "
        "states on every other prompt. A correction is kept only where it accepts more on --prompts.",
    ),
]
PromptsOption = Annotated[
    Path | None,
    typer.Option(
        "--prompts", help="Question file: accepted length before and after, and the tokens of the answers."
    ),
]
CountsOption = Annotated[
    Optional[list[str]],  # noqa: UP045 (typer reads it at run time)
    typer.Option(
        "--counts", metavar="[NAME=]DIR", help="Frequency table: coverage before and after. Repeatable."
    ),
]
HealOption = Annotated[
    int | None,
    typer.Option("--heal", min=1, metavar="STEPS", help="Train it on for so many steps, on --data."),
]
DataOption = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Option("--data", help="Texts or conversations to heal on. Repeatable."),
]
HealFolderOption = Annotated[
    Path | None,
    typer.Option("--heal-output", help="Folder of the healing run [default: OUTPUT with -heal]."),
]


def revocab(
    drafter: DrafterOption,
    vocab: VocabOption,
    output: Annotated[Path, typer.Option("--output", help="Folder to make.")],
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="KEY.SUB=VALUE", help="Override keys of the healing run, e.g. optim.lr=1e-5."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target [default: the one it was trained with]."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    format_name: Annotated[str, typer.Option("--format", help="Layout to write, as in export.")] = "native",
    missing: MissingOption = Missing.target,
    prompts: PromptsOption = None,
    counts: CountsOption = None,
    limit: Annotated[int, typer.Option("--limit", min=2, help="Prompts decoded at most.")] = 40,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 128,
    prompt_format: Annotated[str, typer.Option("--prompt-format", help="auto, chat or raw.")] = "auto",
    depth: decoding.DepthOption = None,
    topk: decoding.TopkOption = None,
    total_nodes: decoding.NodesOption = None,
    heal: HealOption = None,
    data: DataOption = None,
    heal_output: HealFolderOption = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16 or float16 [default: as the drafter is stored]."),
    ] = None,
    decode_dtype: Annotated[
        str, typer.Option("--decode-dtype", help="Of target and drafter while prompts are decoded.")
    ] = "float32",
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … to decode on.")] = None,
    overwrite: OverwriteOption = False,
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
    from .revocab_run import MeasureRequest, RevocabRequest, revocabularise

    check_output(output, overwrite=overwrite)
    folder = heal_output or output.parent / f"{output.name}-heal"
    healed = f"{drafter} over {vocab} (missing rows: {missing.value})"
    request = RevocabRequest(
        drafter,
        vocab,
        output,
        target=target,
        tokenizer=tokenizer,
        format_name=format_name,
        dtype=dtype,
        missing=missing.value,
        counts=tuple(counts or ()),
        overwrite=overwrite,
        measure=MeasureRequest(
            prompts, limit, max_new_tokens, prompt_format, (depth, topk, total_nodes), decode_dtype, device
        ),
        heal=HealRequest(heal, tuple(data or ()), tuple(overrides or ()), folder, healed),
    )
    made = revocabularise(request)
    if as_json:
        print_json(made.to_json())
    else:
        made.print()
