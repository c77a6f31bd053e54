"""The tables that the stage ``report`` ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.console import Name, simple_table
from .chosen import main_methods, main_shape
from .joined import COLUMNS
from .names import COLUMN_NAMES
from .results import StudyResults
from .table_parts import DASH, KINDS, length, percent, share

if TYPE_CHECKING:
    from rich.table import Table


def study_tables(results: StudyResults) -> list[Table]:
    """One method a family, then the claims."""
    return [methods_table(results), *([claims_table(results)] if results.claims else [])]


def methods_table(results: StudyResults) -> Table:
    """The main methods with the main shape, greedy."""
    shape = main_shape(results)
    table = simple_table(f"Draft vocabularies, {shape}, greedy")
    table.add_column("draft vocabulary", min_width=18)
    columns = [column for column in COLUMNS if column in results.columns]
    heads = ["exact\nlogits", "tokens\na cycle", "share of\nfull, %"]
    heads += [f"tokens/s,\n{COLUMN_NAMES[column].replace(', ', chr(10))}" for column in columns]
    for head in heads:
        table.add_column(head, justify="right")
    for one in main_methods(results):
        cell = one.at(shape)
        speeds = [None if cell is None else cell.predicted.get(column) for column in columns]
        table.add_row(
            Name(one.label),
            percent(one.exact),
            length(cell),
            share(cell, between=False),
            *(DASH if speed is None else f"{speed.tokens_per_s:,.1f}" for speed in speeds),
        )
    table.caption = (
        "one a family; accepted lengths are measured, tokens/s predicted, those of the roofline arithmetic"
    )
    table.caption_justify = "left"
    return table


def claims_table(results: StudyResults) -> Table:
    """What was published, and whether it held here."""
    from rich.text import Text

    table = simple_table("Claims")
    for name in ("source", "claim", "published", "here"):
        table.add_column(name)
    table.add_column("verdict", no_wrap=True)
    for one in results.claims:
        here = DASH if one.value is None else f"{one.value:.3g}"
        style = {True: "green", False: "red", None: "dim"}[one.held]
        table.add_row(
            Text(one.source), Text(one.claim), Text(one.published), here, Text(KINDS[one.held], style=style)
        )
    return table
