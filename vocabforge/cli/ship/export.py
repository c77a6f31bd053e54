"""``vocabforge export``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..app import JsonOption, OverwriteOption, print_json
from ..options.groups import one_size

PROMPTS = 48  # that --head uses at most
_FORMATS = (
    "sglang-eagle3 (SGLang and vLLM), speculators-eagle3 (vLLM), eagle (EAGLE-1/2, see --server), fr-spec (EAGLE-1/2 "
    "with a draft vocabulary: SGLang, FR-Spec), or native: what this toolkit trains and decodes with. native imports "
    "a drafter made elsewhere."
)


@dataclass(frozen=True, kw_only=True)
class FallbackOptions:
    """A draft head, and the static vocabulary in its place."""

    head: Annotated[
        Path | None,
        typer.Option(
            "--head",
            help="Draft head (ranker, low-rank, router) of this drafter: write a static draft vocabulary in its place, "
            "counted on --prompts (with --vocab behind the counted tokens), and the head itself under dynamic/.",
        ),
    ] = None
    size: Annotated[
        int | None,
        typer.Option(
            "--fallback-size",
            parser=one_size,
            metavar="N",
            help="Tokens of the static draft vocabulary [default: a quarter of the drafter's own].",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help=f"Held-out prompts for --head, at most {PROMPTS} of them (OUTPUT/heldout_prompts.jsonl of "
            "train-drafter): half count tokens, half measure.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """A drafter, and how it is to be written."""

    drafter: Annotated[
        Path,
        typer.Option(
            "--drafter",
            help="Drafter in any of the formats: OUTPUT/drafter of train-drafter, or one made elsewhere.",
        ),
    ]
    format_name: Annotated[str, typer.Option("--format", help=_FORMATS)]
    output: Annotated[Path, typer.Option("--output", help="Folder to make.")]
    target: Annotated[
        Path | None,
        typer.Option("--target", help="Folder of the target [default: the one it was trained with]."),
    ] = None
    vocab: Annotated[
        list[Path] | None,
        typer.Option("--vocab", help="Subset artefact: restrict the draft head to these tokens."),
    ] = None
    fallback: FallbackOptions
    server: Annotated[
        str | None,
        typer.Option("--server", help="eagle: sglang or vllm, which read it differently [default: sglang]."),
    ] = None
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", help="Evaluation of this drafter: its figures go into the model card. Repeatable."
        ),
    ] = None
    speculative_tokens: Annotated[
        int,
        typer.Option(
            "--speculative-tokens",
            min=1,
            help="Draft tokens a cycle that speculators-eagle3 and the model card recommend.",
        ),
    ] = 5
    dtype: Annotated[
        str, typer.Option("--dtype", help="Of the weights written: float32, bfloat16 or float16.")
    ] = "float32"
    overwrite: OverwriteOption = False


def export(request: ExportRequest, as_json: JsonOption = False) -> None:
    """Write a drafter as a decoder or server reads it, with a model card, optionally with a restricted head.

    The folder is read back and computed with before it takes its name. `--format native` is also the import of a
    drafter that was made elsewhere: this toolkit can then train it on and change its vocabulary.

    Example: `vocabforge export --drafter run/drafter --vocab subset/ --format sglang-eagle3 --output served/`
    """
    from .export_run import run_export

    facts = run_export(request, quiet=as_json)
    if as_json:
        print_json(facts)
