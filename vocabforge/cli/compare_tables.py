"""The tables of ``compare-vocab``, also shown by ``inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..vocab.overlap import ComparedVocabulary, Overlap, VocabularySide


Vocabularies = tuple["ComparedVocabulary", "ComparedVocabulary"]


def overlap_tables(overlap: Overlap, sides: Vocabularies | None = None) -> list[RenderableType]:
    """All tables of a comparison.

    Args:
        sides: what was compared, for token texts and lengths; an artefact does not hold them.
    """
    shown: list[RenderableType] = [_sizes(overlap, sides), _shared(overlap, sides), _needed(overlap)]
    if overlap.corpus is not None:
        shown.append(_corpus(overlap, overlap.corpus))
        for letter, side in (("a", overlap.a), ("b", overlap.b)):
            shown += _failures(side, overlap.corpus[letter])
    return shown


def _table(title: str, overlap: Overlap) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    for letter, side in (("A", overlap.a), ("B", overlap.b)):
        table.add_column(Text(f"{letter}: {side.name}"), justify="right", overflow="fold")
    return table


def _sizes(overlap: Overlap, sides: Vocabularies | None) -> Table:
    a, b = overlap.a, overlap.b
    table = _table("Vocabularies", overlap)
    table.add_row("how bytes are spelled", Text(a.family), Text(b.family))
    for label, field in (
        ("ids (highest + 1)", "vocab_size"),
        ("  tokens of text", "text_tokens"),
        ("  of these added tokens", "added"),
        ("  of these same bytes as another", "duplicates"),
        ("  special or unknown", "special"),
        ("  without a token", "unused"),
        ("single bytes, of 256", "single_bytes"),
    ):
        table.add_row(label, f"{getattr(a, field):,}", f"{getattr(b, field):,}")
    table.add_row("spells any text", *("yes" if side.single_bytes == 256 else "no" for side in (a, b)))
    if sides is not None:
        table.add_row("mean bytes of a token", *(f"{_mean_bytes(one):.2f}" for one in sides))
    named = sides or (None, None)
    ends = (", ".join(_named(end, one) for end in side.eos) for side, one in zip((a, b), named, strict=True))
    table.add_row("end tokens", *(Text(end or "none") for end in ends))
    return table


def _mean_bytes(one: ComparedVocabulary) -> float:
    from ..vocab.bridge import BridgeSide

    return BridgeSide(one.forms.forms, one.speller, one.ends, (0,)).mean_bytes


def _named(token: int, one: ComparedVocabulary | None) -> str:
    """An id, with its text where that is known."""
    from ..vocab.token_bytes import readable

    text = None if one is None else one.tokenizer.backend.id_to_token(token)
    return str(token) if text is None else f"{token} {readable(text)}"


def _shared(overlap: Overlap, sides: Vocabularies | None) -> Table:
    a, b = overlap.a, overlap.b
    table = _table("Overlap", overlap)
    table.add_row("byte strings that are tokens of both", f"{overlap.forms:,}", f"{overlap.forms:,}")
    table.add_row("ids with such bytes", f"{a.shared:,}", f"{b.shared:,}")
    table.add_row("  of the tokens of text", _share(a.shared, a.text_tokens), _share(b.shared, b.text_tokens))
    if overlap.corpus is not None:
        ours, theirs = overlap.corpus["a"], overlap.corpus["b"]
        table.add_row(
            "  weighted by use on the corpus",
            _share(ours["shared"], ours["tokens"]),
            _share(theirs["shared"], theirs["tokens"]),
        )
    pairs = f"{len(overlap.pairs):,}"
    table.add_row("ids paired one to one", pairs, pairs)
    table.add_row(
        "  of the tokens of text", *(_share(len(overlap.pairs), side.text_tokens) for side in (a, b))
    )
    eos, named = overlap.eos_pair, sides or (None, None)
    ends = ["none"] * 2 if eos is None else [_named(*one) for one in zip(eos, named, strict=True)]
    table.add_row("pair of end tokens", *map(Text, ends))
    return table


def _needed(overlap: Overlap) -> Table:
    """Tokens by how many of the other side they need: per id and, with a corpus, per occurrence."""
    sides = {"A": overlap.a, "B": overlap.b}
    table = Table(
        title="Tokens of the other side that a token needs", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("", justify="right")
    columns = []
    for letter, side in sides.items():
        other = "B" if letter == "A" else "A"
        table.add_column(f"{letter}→{other}: ids", justify="right")
        columns.append(_shares(side.needed))
        if overlap.corpus is not None:
            table.add_column(f"{letter}→{other}: in use", justify="right")
            columns.append(_shares(overlap.corpus[letter.lower()]["needed"]))
    last = len(overlap.a.needed) - 1
    names = ["none fits", *map(str, range(1, last)), f"{last} or more"]
    for row, name in enumerate(names):
        table.add_row(name, *(column[row] for column in columns))
    return table


def _corpus(overlap: Overlap, corpus: Mapping[str, Any]) -> Table:
    ours, theirs = corpus["a"], corpus["b"]
    table = _table(f"Corpus: {corpus['documents']:,} documents, {corpus['bytes']:,} bytes", overlap)
    table.add_row("tokens", f"{ours['tokens']:,}", f"{theirs['tokens']:,}")
    table.add_row("bytes per token", *(f"{one['bytes_per_token'] or 0:.3f}" for one in (ours, theirs)))
    table.add_row(
        "boundaries that are the other's too",
        *(_share(corpus["boundaries_shared"], one["boundaries"]) for one in (ours, theirs)),
    )
    table.add_row(
        "documents given back unchanged",
        *(_share(one["exact"], corpus["documents"]) for one in (ours, theirs)),
    )
    return table


def _failures(side: VocabularySide, figures: Mapping[str, Any]) -> list[RenderableType]:
    from ..vocab.token_bytes import readable

    if not figures["failures"]:
        return []
    causes = "; ".join(f"{cause}: {count:,}" for cause, count in figures["causes"].items())
    shown: list[RenderableType] = [Text(f"{side.name} changes texts ({causes}). The first:")]
    for failure in figures["failures"]:
        shown.append(Text(f"  {failure['place']}: {failure['cause']}", style="dim"))
        for name in ("text", "decoded"):
            shown.append(Text(f"    {name + ':':<9}{readable(failure[name])}"))
    return shown


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "-"


def _shares(counts: tuple[int, ...] | list[int]) -> list[str]:
    return [_share(count, sum(counts)) for count in counts]
