"""The report of ``head_report`` as a table for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

_COLUMNS = (
    "argmax\nrecall",
    "top-10\nrecall",
    "short-\nlist",
    "\nof V",
    "\nAP",
    "accept-\nance",
    "\nlost",
    "\nchain",
    "\nlost",
)


def report_table(report: Mapping[str, Any]) -> Table:
    """One row a head: recall of the full head's choices, shortlist, acceptance and chain, and what is lost.

    Figures by draft step stand in the JSON; the table shows all steps together.
    """
    table = Table(
        title=f"Draft heads against the full head, {report['steps']} draft steps",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("\nhead", overflow="fold")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, entry in report["heads"].items():
        all_steps = entry["overall"]
        precision = all_steps["average_precision"]
        table.add_row(
            _label(name, entry),
            f"{all_steps['argmax_recall']:.1%}",
            f"{all_steps['top10_recall']:.1%}",
            f"{all_steps['shortlist']:,.0f}",
            f"{all_steps['shortlist_share']:.0%}",
            "-" if precision is None else f"{precision:.3f}",
            f"{all_steps['acceptance']:.3f}",
            f"{all_steps['acceptance_lost']:.3f}",
            f"{all_steps['chain_accepted_length']:.2f}",
            f"{all_steps['chain_lost']:.2f}",
        )
    return table


def _label(name: str, entry: Mapping[str, Any]) -> str:
    """The head's name; of a router that is not named by its schedule also the clusters it opens."""
    clusters = entry.get("clusters")
    if not clusters or ":" in name:
        return name
    shown = clusters[:1] if len(set(clusters)) == 1 else clusters
    return f"{name} ({' '.join(map(str, shown))})"
