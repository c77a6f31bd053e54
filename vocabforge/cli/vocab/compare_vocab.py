"""``vocabforge compare-vocab``: find the tokens that two tokenizers share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.config import Positive, ResultOptions, StrictModel, option
from ...core.console import DataTable, percent
from ...core.errors import UsageError
from ...core.hub import hub_name, model_folder
from ...core.progress import ProgressBar
from ...core.values import TextUnit
from ..app import echo, print_json, stdout_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...corpus.sources.sources import Document
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


class CompareRequest(StrictModel):
    """Texts to compare on, how they are read, and the output folder."""

    more_inputs: tuple[Path, ...] = option(
        (), "Texts to compare on, as with --input.", "PATH", positional=True
    )
    input: tuple[Path, ...] = option(
        (),
        "Texts to compare on: files or folders. Without it, only the vocabularies are compared.",
        "PATH …",
        many=True,
    )
    output: Path | None = option(None, "Output folder for the pairs of equal tokens and all figures.", "DIR")
    text_field: str | None = option(None, "JSON field with the text; by default the usual names.", "NAME")
    text_unit: TextUnit = option("paragraph", "What one document of a text file is.")
    max_documents: Positive | None = option(None, "Maximum number of documents.", "N")
    eos: str | None = option(
        None, "Pair of matching end tokens, by text or id. Default: the first of each.", "A:B"
    )


def compare_vocab(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A tokenizer.json, or the folder that contains one.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other tokenizer.")],
    asked: CompareRequest,
    ending: ResultOptions,
) -> None:
    """Compare two tokenizers byte by byte: sizes, shared tokens, end tokens.

    With --input, also compare on a corpus: shared tokens in use, bytes per token, and how many texts survive
    encoding and decoding unchanged.

    Example: `vocabforge compare-vocab drafter/ target/ --input corpus/ --output overlap/`
    """
    from ...core.artifact import check_output
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...vocab.overlap.overlap import compare, prepare, save_overlap

    inputs, save = [*asked.input, *asked.more_inputs], asked.output
    if any(path.name == "tokenizer.json" or (path / "tokenizer.json").is_file() for path in inputs):
        raise UsageError(
            "more than two tokenizers were given",
            got=", ".join(map(str, [a, b, *inputs])),
            expected="A B [--input PATH …], the paths being texts",
        )
    if save is not None:
        check_output(save, overwrite=ending.overwrite)
    a, b = (model_folder(path, weights=False) for path in (a, b))
    with ProgressBar("read the tokens"):
        sides = prepare(load_tokenizer(a)), prepare(load_tokenizer(b))
    eos_pair = None if asked.eos is None else _eos_pair(*sides, asked.eos)
    figures = _on_corpus(*sides, inputs, asked) if inputs else None
    with ProgressBar("compare the vocabularies"):
        overlap = compare(*sides, corpus=figures, eos_pair=eos_pair)
    if save is not None:
        places = {"a": hub_name(a.resolve()), "b": hub_name(b.resolve())}
        config = {**places, "input": [str(path) for path in inputs], "eos": asked.eos}
        save_overlap(overlap, save, config=config, overwrite=ending.overwrite)
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


def _on_corpus(
    a: ComparedVocabulary, b: ComparedVocabulary, inputs: list[Path], asked: CompareRequest
) -> dict[str, Any]:
    from ...corpus.sources.inputs import is_hub
    from ...corpus.sources.sources import SourceOptions, expand_paths, iter_documents
    from ...vocab.overlap.overlap import compare_on_corpus

    options, limit = SourceOptions(asked.text_field, asked.text_unit), asked.max_documents
    stored = sum(path.stat().st_size for path in expand_paths(inputs) if not is_hub(path))
    with ProgressBar("comparing", None if limit else stored, "B") as bar:
        read: Iterator[Document] = iter_documents(inputs, options, on_bytes=bar.update)
        return compare_on_corpus(a, b, islice(read, limit))


def overlap_tables(
    overlap: Overlap, sides: tuple[ComparedVocabulary, ComparedVocabulary] | None = None
) -> list[RenderableType]:
    """Return all tables of a comparison.

    Args:
        sides: the vocabularies, for token texts, which an artefact does not contain.
    """
    both, corpus, pairs = (overlap.a, overlap.b), overlap.corpus, len(overlap.pairs)
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
    tables = []
    if corpus is not None:
        used = (corpus["a"], corpus["b"])
        weighted = [
            "· weighted by use on the corpus",
            *(_share(use["shared"], use["tokens"]) for use in used),
        ]
        shared.insert(3, weighted)
        rows = [
            ["tokens", *(f"{use['tokens']:,}" for use in used)],
            ["bytes per token", *(f"{use['bytes_per_token'] or 0:.3f}" for use in used)],
            ["documents given back unchanged", *(_share(use["exact"], corpus["documents"]) for use in used)],
        ]
        title = f"Corpus: {corpus['documents']:,} documents, {corpus['bytes']:,} bytes"
        tables = [DataTable(title, heads, rows)]
    return [DataTable("Vocabularies", heads, sizes), DataTable("Overlap", heads, shared), *tables]


def _named(token: int, vocabulary: ComparedVocabulary | None) -> str:
    """Return an id, with its text if known."""
    from ...corpus.tokenizer.token_bytes import readable

    text = None if vocabulary is None else vocabulary.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else f"{token} {readable(text)}"


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)
