"""The tables that end a coverage study on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .coverage_results import HELD_OUT
from .wide_tables import simple_table

if TYPE_CHECKING:
    from rich.table import Table

Results = Mapping[str, Any]


def coverage_table(results: Results) -> Table:
    """Sizes by texts."""
    table = _table("Tokens inside, %", ["size", "of V"], _columns(results))
    for row, size in enumerate(results["sizes"]):
        cells = [_percent(text["coverage"][row]) for text in results["texts"]]
        table.add_row(f"{size:,}", _percent(size / results["vocab_size"]), *cells)
    return table


def vocabulary_table(results: Results) -> Table:
    """Draft vocabularies by texts, each with the best that so many ids could do below it."""
    from rich.text import Text

    table = _table("Draft vocabularies: tokens inside, %", ["vocabulary", "size"], _columns(results))
    for vocab in results["vocabularies"]:
        names = [text["name"] for text in results["texts"]]
        table.add_row(
            Text(vocab["name"]), f"{vocab['size']:,}", *(_percent(vocab["coverage"][name]) for name in names)
        )
        best = [_percent(vocab["best"][name]) for name in names]
        table.add_row("  best", "", *best, style="dim")
    return table


def ceiling_table(results: Results) -> Table:
    """Static, oracle and greedy ceiling by size and domain."""
    from rich.text import Text

    ceilings = results["ceilings"]
    columns = [(name, False) for name in ceilings["domains"]]
    title = f"Ceilings of acceptance with {ceilings['target']}, %: static / oracle / greedy"
    table = _table(title, ["size"], columns)
    for row, size in enumerate(ceilings["sizes"]):
        cells = [
            " / ".join(_percent(domain[kind][row]) for kind in ("static", "oracle", "greedy"))
            for domain in ceilings["domains"].values()
        ]
        table.add_row(f"{size:,}", *cells)
    for name in (vocab["name"] for vocab in results["vocabularies"]):
        own = [domain["vocabularies"][name] for domain in ceilings["domains"].values()]
        cells = [" / ".join(_percent(one[kind]) for kind in ("static", "oracle", "greedy")) for one in own]
        table.add_row(Text(name), *cells)
    return table


def _columns(results: Results) -> list[tuple[str, bool]]:
    _, *others = results["texts"]  # the first is all that was counted
    return [("all", False), *((text["name"], text["role"] == HELD_OUT) for text in others)]


def summary_lines(results: Results) -> list[str]:
    """Sentences on the counted table, the held-out ones, and padded rows."""
    counted = results["texts"][0]
    carrying = ", ".join(
        f"{row['share']:.0%} of them by {row['size']:,} ids ({row['of_vocabulary']:.1%})"
        for row in counted["carrying"]
    )
    lines = [f"The counted tokens are carried: {carrying}; the vocabulary has {results['vocab_size']:,}."]
    if counted["unseen_estimate"] is not None:
        lines.append(
            f"Expected share of further tokens without a count (Good-Turing): {counted['unseen_estimate']:.4%}."
        )
    lines += [
        f"{text['name']} (held out): {text['without_count']:.4%} of its tokens have an id without a count."
        for text in results["texts"]
        if text["role"] == HELD_OUT and not text["domain"]
    ]
    ceilings = results["ceilings"]
    if ceilings and ceilings["padded_rows"]:
        lines.append(f"{ceilings['padded_rows']:,} padded rows in the target's head of {ceilings['rows']:,}.")
    return lines


def _table(title: str, heads: Sequence[str], columns: Sequence[tuple[str, bool]]) -> Table:
    from rich.text import Text

    table = simple_table(title)
    table.padding = (0, 1, 0, 0)
    for head in heads:
        table.add_column(head, justify="left" if head == "vocabulary" else "right", no_wrap=head == "size")
    for name, held_out in columns:
        table.add_column(
            Text(f"{name}\n(held out)" if held_out else name), justify="right", overflow="fold", min_width=5
        )
    return table


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    # Never 100 where a token is missing.
    return f"{100 * value:.1f}" if value < 0.9995 or value == 1.0 else ">99.9"
