"""Tables of ``compare-vocab``, also shown by ``inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.console import DataTable, percent
from ...vocab.overlap.token_bytes import readable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...vocab.overlap.overlap import ComparedVocabulary, Overlap

Vocabularies = tuple["ComparedVocabulary", "ComparedVocabulary"]
_NUMBERS = {
    "ids (highest + 1)": "vocab_size",
    "· tokens of text": "text_tokens",
    "· of these added tokens": "added",
    "· of these same bytes as another": "duplicates",
    "· special or unknown": "special",
    "· without a token": "unused",
    "single bytes, of 256": "single_bytes",
}


def overlap_tables(overlap: Overlap, sides: Vocabularies | None = None) -> list[RenderableType]:
    """Return all tables of a comparison.

    Args:
        sides: the vocabularies, for token texts and lengths, which an artefact does not contain.
    """
    a, b = overlap.a, overlap.b
    heads = ["<", *(f"{letter}: {side.name}" for letter, side in (("A", a), ("B", b)))]
    sizes = [
        ["how bytes are encoded", a.family, b.family],
        *([label, *(f"{getattr(side, field):,}" for side in (a, b))] for label, field in _NUMBERS.items()),
        ["spells any text", *("yes" if side.single_bytes == 256 else "no" for side in (a, b))],
    ]
    named = sides or (None, None)
    ends = [
        ", ".join(_named(end, one) for end in side.eos) or "none"
        for side, one in zip((a, b), named, strict=True)
    ]
    shown: list[RenderableType] = [
        DataTable("Vocabularies", heads, [*sizes, ["end tokens", *ends]]),
        DataTable("Overlap", heads, _shared(overlap, named)),
    ]
    if (corpus := overlap.corpus) is None:
        return shown
    title = f"Corpus: {corpus['documents']:,} documents, {corpus['bytes']:,} bytes"
    both = (corpus["a"], corpus["b"])
    rows = [
        ["tokens", *(f"{one['tokens']:,}" for one in both)],
        ["bytes per token", *(f"{one['bytes_per_token'] or 0:.3f}" for one in both)],
        ["documents given back unchanged", *(_share(one["exact"], corpus["documents"]) for one in both)],
    ]
    return [*shown, DataTable(title, heads, rows)]


def _named(token: int, one: ComparedVocabulary | None) -> str:
    """Return an id, with its text if known."""
    text = None if one is None else one.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else f"{token} {readable(text)}"


def _shared(
    overlap: Overlap, named: tuple[ComparedVocabulary | None, ComparedVocabulary | None]
) -> list[list[str]]:
    sides, pairs = (overlap.a, overlap.b), len(overlap.pairs)
    rows = [
        ["byte strings that are tokens of both", *(f"{overlap.forms:,}" for _ in sides)],
        ["ids with such bytes", *(f"{side.shared:,}" for side in sides)],
        ["· of the tokens of text", *(_share(side.shared, side.text_tokens) for side in sides)],
    ]
    if overlap.corpus is not None:
        both = (overlap.corpus["a"], overlap.corpus["b"])
        rows.append(
            ["· weighted by use on the corpus", *(_share(one["shared"], one["tokens"]) for one in both)]
        )
    ends = ["none"] * 2
    if overlap.eos_pair is not None:
        ends = [_named(*one) for one in zip(overlap.eos_pair, named, strict=True)]
    return [
        *rows,
        ["ids paired one to one", *(f"{pairs:,}" for _ in sides)],
        ["· of the tokens of text", *(_share(pairs, side.text_tokens) for side in sides)],
        ["pair of end tokens", *ends],
    ]


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else None)
