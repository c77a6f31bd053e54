"""``vocabforge compare-vocab``: what two tokenizers' vocabularies share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..app import JsonOption, echo, print_json, stdout_console
from ..options.texts import TextUnit, TextUnitOption

if TYPE_CHECKING:
    from ...corpus.sources.sources import Document
    from ...vocab.overlap.overlap import ComparedVocabulary, Overlap


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Texts to compare on, beside the vocabularies themselves, and where the result is kept."""

    more_inputs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Texts to compare on, as with --input.", show_default=False),
    ] = None
    first_inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            metavar="PATH …",
            help="Texts to compare on (files or folders). Several paths may follow, and it may be repeated. "
            "Without it, only the vocabularies are compared.",
        ),
    ] = None

    save: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Folder for the pairs of equal tokens and all figures."),
    ] = None

    def paths(self) -> list[Path]:
        """All of them, none where only the vocabularies are compared."""
        return [*(self.first_inputs or []), *(self.more_inputs or [])]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How the texts are read, and which tokens end them."""

    text_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="JSON field with the text; by default the usual names.")
    ] = None
    text_unit: TextUnitOption = TextUnit.paragraph
    max_documents: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after so many documents.")
    ] = None
    eos: Annotated[
        str | None,
        typer.Option(
            "--eos",
            metavar="A:B",
            help="End tokens that stand for each other, by text or id, where the first of each are not the right "
            "ones.",
        ),
    ] = None


def compare_vocab(
    a: Annotated[Path, typer.Argument(metavar="A", help="A tokenizer.json, or the folder that holds one.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other tokenizer.")],
    compared: ComparisonOptions,
    reading: ReadingOptions,
    as_json: JsonOption = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an artefact at --output.")] = False,
) -> None:
    """Compare two tokenizers byte by byte: sizes, shared tokens, tokens that need several of the other.

    With --input also on a corpus: shared tokens in use, bytes per token, and how many texts encoding and
    decoding give back unchanged.

    Example: `vocabforge compare-vocab drafter/ target/ --input corpus/ --output overlap/`
    """
    from ...core.artifact import check_output
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...vocab.overlap.overlap import compare, prepare, save_overlap

    inputs, save = compared.paths(), compared.save
    _check_two(a, b, inputs)
    if save is not None:
        check_output(save, overwrite=overwrite)
    sides = prepare(load_tokenizer(a)), prepare(load_tokenizer(b))
    eos_pair = None if reading.eos is None else _eos_pair(*sides, reading.eos)
    figures = _on_corpus(*sides, inputs, reading) if inputs else None
    overlap = compare(*sides, corpus=figures, eos_pair=eos_pair)
    if save is not None:
        config = {
            "a": str(a.resolve()),
            "b": str(b.resolve()),
            "input": [str(path) for path in inputs],
            "eos": reading.eos,
        }
        save_overlap(overlap, save, config=config, overwrite=overwrite)
    if as_json:
        print_json({**overlap.to_json(), "output": str(save) if save is not None else None})
    else:
        _print(overlap, sides, save)


def _check_two(a: Path, b: Path, inputs: list[Path]) -> None:
    from ...core.errors import UsageError

    if any(path.name == "tokenizer.json" or (path / "tokenizer.json").is_file() for path in inputs):
        raise UsageError(
            "more than two tokenizers were given",
            got=", ".join(map(str, [a, b, *inputs])),
            expected="A B [--input PATH …], the paths being texts",
        )


def _print(overlap: Overlap, sides: tuple[ComparedVocabulary, ComparedVocabulary], save: Path | None) -> None:

    from .compare_tables import overlap_tables

    out = stdout_console(highlight=True)
    for table in overlap_tables(overlap, sides):
        out.print(table)
    if save is not None:
        echo(f"Written to {save}")


def _eos_pair(a: ComparedVocabulary, b: ComparedVocabulary, named: str) -> tuple[int, int]:
    """``A:B``; token texts may hold a colon themselves, so every one is tried.

    Raises:
        UsageError: not of this form, or not two special tokens.
    """
    from ...core.errors import UsageError
    from ...vocab.overlap.overlap import end_token

    colons = [at for at in range(1, len(named) - 1) if named[at] == ":"]
    if not colons:
        raise UsageError(
            "the pair of end tokens cannot be read",
            got=named,
            expected="A:B, two token texts or ids such as '</s>:<|endoftext|>'",
            source="--eos",
        )
    for at in colons[:-1]:
        with suppress(UsageError):
            return end_token(a, named[:at]), end_token(b, named[at + 1 :])
    at = colons[-1]
    return end_token(a, named[:at]), end_token(b, named[at + 1 :])


def _on_corpus(
    a: ComparedVocabulary, b: ComparedVocabulary, inputs: list[Path], reading: ReadingOptions
) -> dict[str, Any]:
    from ...core.console import ProgressBar
    from ...corpus.sources.sources import SourceOptions, expand_paths, iter_documents
    from ...vocab.overlap.on_text import compare_on_corpus

    options, limit = SourceOptions(reading.text_field, reading.text_unit.value), reading.max_documents
    stored = sum(path.stat().st_size for path in expand_paths(inputs))
    with ProgressBar("comparing", None if limit else stored, "B") as bar:
        read: Iterator[Document] = iter_documents(inputs, options, on_bytes=bar.update)
        return compare_on_corpus(a, b, islice(read, limit))
