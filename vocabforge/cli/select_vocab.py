"""``vocabforge select-vocab``: choose draft vocabularies from a frequency table."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .app import JsonOption, OverwriteOption, print_json


class Fill(str, Enum):
    """What to do when too few ids have a count."""

    error = "error"
    lowest_id = "lowest-id"


CountsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--counts",
        metavar="DIR",
        help="Frequency table made by count-freq. Several, as DIR=WEIGHT each, are mixed by weight.",
    ),
]
CountsTextOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Instead: a text file with one count a line for each token id. Needs --tokenizer.",
    ),
]
FromListOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Instead: import an FR-Spec list (.pt) as it is. Needs --tokenizer."),
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Tokenizer of an imported file, and for `--export text`."),
]
DomainOption = Annotated[
    list[str] | None,
    typer.Option(
        "--domain",
        metavar="NAME",
        help="Count only this domain of the table; may be repeated. NAME=WEIGHT mixes domains by weight.",
    ),
]
SizeOption = Annotated[
    list[int] | None,
    typer.Option("--size", metavar="N", min=1, help="Ids of the draft vocabulary; may be repeated."),
]
CoverageOption = Annotated[
    list[float] | None,
    typer.Option(
        "--coverage",
        metavar="SHARE",
        help="Instead of a size: the smallest one that holds this share of the counted tokens (0.95); may be repeated.",
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        metavar="LAW",
        help="PA-FR: `constant`, `linear`, `geometric` or `decay`; draft step t uses the first B(t) ids in rank order.",
    ),
]
KMaxOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Schedule: size at draft steps 0 and 1, and of the artefact."),
]
KMinOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Schedule: size that it never falls below.")
]
StepsOption = Annotated[int, typer.Option(min=1, metavar="K", help="Schedule: number of draft steps.")]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        metavar="DIR",
        help="With one size, the artefact itself; with several, a folder with one artefact `rN` each.",
    ),
]
ForceOption = Annotated[
    list[int] | None, typer.Option("--force", metavar="ID", help="Force this token id; may be repeated.")
]
ForceBytesOption = Annotated[bool, typer.Option("--force-bytes", help="Force the 256 byte tokens.")]
ForceToolsOption = Annotated[
    bool,
    typer.Option("--force-tools", help="Force the chat template's tokens for tool calls and thinking."),
]
TargetOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Target model folder: its end tokens are forced, its tokenizer must be the counted one, and its "
        "padded rows are counted in `t2d`.",
    ),
]
FillOption = Annotated[
    Fill,
    typer.Option(
        help="When too few ids have a count: **error** says how many there are; **lowest-id** takes the "
        "lowest ids without a count and reports how many."
    ),
]
ExportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        metavar="FORMAT",
        help="Also write, inside the artefact: `fr-spec` (freq_SIZE.pt), `d2t` (d2t.safetensors), `text` "
        "(tokens.tsv, for people), `counts-text` (counts.txt, one count a line); may be repeated.",
    ),
]


def select_vocab(
    output: OutputOption,
    counts: CountsOption = None,
    counts_text: CountsTextOption = None,
    from_list: FromListOption = None,
    tokenizer: TokenizerOption = None,
    domain: DomainOption = None,
    size: SizeOption = None,
    coverage: CoverageOption = None,
    schedule: ScheduleOption = None,
    k_max: KMaxOption = None,
    k_min: KMinOption = None,
    steps: StepsOption = 7,
    force: ForceOption = None,
    force_bytes: ForceBytesOption = False,
    force_tools: ForceToolsOption = False,
    target: TargetOption = None,
    fill: FillOption = Fill.error,
    export: ExportOption = None,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Choose the most frequent tokens as a draft vocabulary (FR-Spec, VocabTrim, EAGLE-3's d2t).

    Exactly N unique ids: first the forced ones (end tokens and the chat template's control tokens, always),
    then by count, ties to the lower id.

    Examples: `vocabforge select-vocab --counts counts/ --size 8192 --size 32768 --output subsets/`
    and `vocabforge select-vocab --counts counts/ --coverage 0.95 --export fr-spec --output subset/`
    """
    from ..vocab.forced import ForceOptions
    from .select_options import Choice, Inputs
    from .select_run import Output, run

    choice = Choice(tuple(size or ()), tuple(coverage or ()), schedule, k_max, k_min, steps)
    inputs = Inputs(tuple(counts or ()), tuple(domain or ()), counts_text, from_list, tokenizer)
    options = ForceOptions(tuple(force or ()), force_bytes, force_tools, target)
    written = Output(output, tuple(dict.fromkeys(export or ())), overwrite)
    result = run(inputs, choice, options, written, fill=fill.value)
    if as_json:
        print_json(result.facts())
    else:
        result.print()
