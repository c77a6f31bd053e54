"""The tables of ``compare-vocab``, also shown by ``inspect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..vocab.overlap import Overlap, Side


def overlap_tables(overlap: Overlap) -> list[RenderableType]:
    """All tables of a comparison."""
    shown: list[RenderableType] = [_sizes(overlap), _shared(overlap), _needed(overlap)]
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


def _sizes(overlap: Overlap) -> Table:
    a, b = overlap.a, overlap.b
    table = _table("Vocabularies", overlap)
    table.add_row("how bytes are spelled", a.family, b.family)
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
    table.add_row("end tokens", *(", ".join(map(str, side.eos)) or "none" for side in (a, b)))
    return table


def _shared(overlap: Overlap) -> Table:
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
    eos = overlap.eos_pair or ("none", "none")
    table.add_row("pair of end tokens", str(eos[0]), str(eos[1]))
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


def _failures(side: Side, figures: Mapping[str, Any]) -> list[RenderableType]:
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
