"""``vocabforge export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import export_fallback as fallback
from .app import JsonOption, OverwriteOption, print_json

_FORMATS = (
    "sglang-eagle3 (SGLang and vLLM), speculators-eagle3 (vLLM), eagle (EAGLE-1/2, see --server), fr-spec (EAGLE-1/2 "
    "with a draft vocabulary: SGLang, FR-Spec), or native: what this toolkit trains and decodes with. native imports "
    "a drafter made elsewhere."
)


def export(
    drafter: Annotated[
        Path,
        typer.Option(
            "--drafter",
            help="Drafter in any of the formats: OUTPUT/drafter of train-drafter, or one made elsewhere.",
        ),
    ],
    format_name: Annotated[str, typer.Option("--format", help=_FORMATS)],
    output: Annotated[Path, typer.Option("--output", help="Folder to make.")],
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target [default: the one it was trained with]."),
    ] = None,
    vocab: Annotated[
        list[Path] | None,
        typer.Option("--vocab", help="Subset artefact: restrict the draft head to these tokens."),
    ] = None,
    head: fallback.HeadOption = None,
    fallback_size: fallback.FallbackSizeOption = None,
    prompts: fallback.PromptsOption = None,
    server: Annotated[
        str | None,
        typer.Option("--server", help="eagle: sglang or vllm, which read it differently [default: sglang]."),
    ] = None,
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", help="Evaluation of this drafter: its figures go into the model card. Repeatable."
        ),
    ] = None,
    speculative_tokens: Annotated[
        int,
        typer.Option(
            "--speculative-tokens",
            min=1,
            help="Draft tokens a cycle that speculators-eagle3 and the model card recommend.",
        ),
    ] = 5,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Of the weights written: float32, bfloat16 or float16.")
    ] = "float32",
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a drafter as a decoder or server reads it, with a model card, optionally with a restricted head.

    The folder is read back and computed with before it takes its name. `--format native` is also the import of a
    drafter that was made elsewhere: this toolkit can then train it on and change its vocabulary.

    Example: `vocabforge export --drafter run/drafter --vocab subset/ --format sglang-eagle3 --output served/`
    """
    from .export_run import ExportRequest, run_export

    facts = run_export(
        ExportRequest(
            format_name,
            drafter,
            output,
            target,
            tuple(vocab or ()),
            dtype,
            head,
            fallback_size,
            prompts,
            server,
            tuple(evaluation or ()),
            speculative_tokens,
            overwrite,
        ),
        quiet=as_json,
    )
    if as_json:
        print_json(facts)
