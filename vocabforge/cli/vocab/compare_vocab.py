"""``vocabforge compare-vocab``: find the tokens that two tokenizers share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.config import ResultOptions
from ...core.console import DataTable, percent
from ...core.errors import UsageError
from ...core.hub import hub_name, model_folder
from ...core.progress import ProgressBar
from ..app import echo, print_json, stdout_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...vocab.overlap.overlap import ComparedVocabulary, Overlap

_NUMBERS = {
    "ids (highest + 1)": "vocab_size",
    "· tokens of text": "text_tokens",
    "· of these added tokens": "added",
    "· of these same bytes as another": "duplicates",
    "· special or unknown": "special",
    "· without a token": "unused",
    "single bytes, of 256": "single_bytes",
}


def compare_vocab(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A tokenizer.json, or the folder that contains one.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other tokenizer.")],
    ending: ResultOptions,
    save: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", help="Output folder for the pairs of equal tokens and all figures."
        ),
    ] = None,
    eos: Annotated[
        str | None,
        typer.Option(
            metavar="A:B", help="Pair of matching end tokens, by text or id. Default: the first of each."
        ),
    ] = None,
) -> None:
    """Compare two tokenizers byte by byte: sizes, shared tokens, end tokens.

    Example: `vocabforge compare-vocab drafter/ target/ --output overlap/`
    """
    from ...core.artifact import check_output
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...vocab.overlap.overlap import compare, prepare, save_overlap

    if save is not None:
        check_output(save, overwrite=ending.overwrite)
    a, b = (model_folder(path, weights=False) for path in (a, b))
    with ProgressBar("read the tokens"):
        sides = prepare(load_tokenizer(a)), prepare(load_tokenizer(b))
    eos_pair = None if eos is None else _eos_pair(*sides, eos)
    with ProgressBar("compare the vocabularies"):
        overlap = compare(*sides, eos_pair=eos_pair)
    if save is not None:
        places = {"a": hub_name(a.resolve()), "b": hub_name(b.resolve())}
        save_overlap(overlap, save, config={**places, "eos": eos}, overwrite=ending.overwrite)
    if ending.as_json:
        print_json({**overlap.to_json(), "output": str(save) if save is not None else None})
        return
    out = stdout_console(highlight=True)
    for table in overlap_tables(overlap, sides):
        out.print(table)
    if save is not None:
        echo(f"Written to {save}")


def _eos_pair(a: ComparedVocabulary, b: ComparedVocabulary, named: str) -> tuple[int, int]:
    """Parse ``A:B``, two token texts or ids."""
    from ...vocab.overlap.overlap import end_token

    first, colon, second = named.partition(":")
    if not first or not colon or not second:
        raise UsageError(
            "the pair of end tokens cannot be read",
            got=named,
            expected="A:B, two token texts or ids such as '</s>:<|endoftext|>'",
            source="--eos",
        )
    return end_token(a, first), end_token(b, second)


def overlap_tables(
    overlap: Overlap, sides: tuple[ComparedVocabulary, ComparedVocabulary] | None = None
) -> list[RenderableType]:
    """Return all tables of a comparison.

    Args:
        sides: the vocabularies, for token texts, which an artefact does not contain.
    """
    both, pairs = (overlap.a, overlap.b), len(overlap.pairs)
    named = sides or (None, None)
    heads = ["<", *(f"{letter}: {side.name}" for letter, side in zip("AB", both, strict=True))]
    ends = [
        ", ".join(_named(end, vocabulary) for end in side.eos) or "none"
        for side, vocabulary in zip(both, named, strict=True)
    ]
    pair = ["none"] * 2
    if overlap.eos_pair is not None:
        pair = [_named(*end) for end in zip(overlap.eos_pair, named, strict=True)]
    sizes = [
        ["how bytes are encoded", *(side.family for side in both)],
        *([label, *(f"{getattr(side, field):,}" for side in both)] for label, field in _NUMBERS.items()),
        ["spells any text", *("yes" if side.single_bytes == 256 else "no" for side in both)],
        ["end tokens", *ends],
    ]
    shared = [
        ["byte strings that are tokens of both", *(f"{overlap.forms:,}" for _ in both)],
        ["ids with such bytes", *(f"{side.shared:,}" for side in both)],
        ["· of the tokens of text", *(_share(side.shared, side.text_tokens) for side in both)],
        ["ids paired one to one", *(f"{pairs:,}" for _ in both)],
        ["· of the tokens of text", *(_share(pairs, side.text_tokens) for side in both)],
        ["pair of end tokens", *pair],
    ]
    return [DataTable("Vocabularies", heads, sizes), DataTable("Overlap", heads, shared)]


def _named(token: int, vocabulary: ComparedVocabulary | None) -> str:
    from ...corpus.tokenizer.token_bytes import readable

    text = None if vocabulary is None else vocabulary.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else f"{token} {readable(text)}"


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)
