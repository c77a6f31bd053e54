"""``vocabforge select-vocab``: choose draft vocabularies from a frequency table."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import JsonOption, OverwriteOption, print_json

if TYPE_CHECKING:
    from ..vocab.subset import VocabSubset


class Fill(str, Enum):
    """What to do when too few ids have a count."""

    error = "error"
    lowest_id = "lowest-id"


CountsOption = Annotated[
    Path, typer.Option("--counts", metavar="DIR", help="Frequency table made by count-freq.")
]
SizeOption = Annotated[
    list[int],
    typer.Option("--size", metavar="N", min=1, help="Ids of the draft vocabulary; may be repeated."),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output",
        metavar="DIR",
        help="With one size, the artefact itself; with several, a folder with one artefact `r<N>` each.",
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
        help="Target model folder: its end tokens are forced, and its tokenizer must be the counted one.",
    ),
]
FillOption = Annotated[
    Fill,
    typer.Option(
        help="When too few ids have a count: **error** says how many there are; **lowest-id** takes the "
        "lowest ids without a count and reports how many."
    ),
]


def select_vocab(
    counts: CountsOption,
    size: SizeOption,
    output: OutputOption,
    force: ForceOption = None,
    force_bytes: ForceBytesOption = False,
    force_tools: ForceToolsOption = False,
    target: TargetOption = None,
    fill: FillOption = Fill.error,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Choose the most frequent tokens as a draft vocabulary (FR-Spec, VocabTrim, EAGLE-3's d2t).

    Exactly N unique ids: first the forced ones (end tokens and the chat template's control tokens, always),
    then by count, ties to the lower id.

    Example: `vocabforge select-vocab --counts counts/ --size 8192 --size 32768 --output subsets/`
    """
    from ..core.artifact import check_output, open_artifact
    from ..core.errors import UsageError
    from ..vocab.forced import ForceOptions, forced_ids
    from ..vocab.subset import make_subset, save_subset
    from ..vocab.table import load_counts

    sizes = list(dict.fromkeys(size))
    places = {one: output if len(sizes) == 1 else output / f"r{one}" for one in sizes}
    if len(sizes) > 1 and (output / "manifest.json").exists():
        raise UsageError(
            "the output is an artefact, so the folders of several sizes cannot stand in it",
            got=output,
            remedy="choose another --output",
        )
    for place in places.values():
        check_output(place, overwrite=overwrite)
    table = load_counts(counts)
    parent = open_artifact(counts, "counts", verify=False).content_hash
    options = ForceOptions(tuple(force or ()), force_bytes, force_tools, target)
    forced = forced_ids(table, options)
    subsets = {
        place: make_subset(table.counts, one, forced, fingerprint=table.fingerprint, fill=fill.value)
        for one, place in places.items()
    }
    for place, subset in subsets.items():
        save_subset(subset, place, parents={"counts": parent}, overwrite=overwrite)
    if as_json:
        print_json(
            {"counts": str(counts), "subsets": [_facts(place, subset) for place, subset in subsets.items()]}
        )
    else:
        _print_table(subsets)


def _facts(place: Path, subset: VocabSubset) -> dict[str, Any]:
    return {
        "output": str(place),
        "size": len(subset),
        "vocab_size": subset.vocab_size,
        "share": len(subset) / subset.vocab_size,
        "coverage": subset.coverage,
        "forced": list(subset.forced),
        "filled": subset.filled,
        "fingerprint": subset.fingerprint,
    }


def _print_table(subsets: dict[Path, VocabSubset]) -> None:
    from rich.console import Console
    from rich.table import Table

    out = Console()
    shown = Table(title="Draft vocabularies")
    for name in ("size", "of vocabulary", "coverage", "forced ids", "filled"):
        shown.add_column(name, justify="right")
    shown.add_column("written to", overflow="fold")
    for place, subset in subsets.items():
        few = ", ".join(map(str, subset.forced[:4])) + (", …" if len(subset.forced) > 4 else "")
        coverage = "-" if subset.coverage is None else f"{subset.coverage:.2%}"
        row = (
            f"{len(subset):,}",
            f"{len(subset) / subset.vocab_size:.1%}",
            coverage,
            f"{len(subset.forced)} ({few})",
        )
        shown.add_row(*row, f"{subset.filled:,}", str(place))
    out.print(shown)
    out.print("coverage: share of the counted tokens that the draft vocabulary holds.", style="dim")
