"""The table that ends an evaluation on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..decode.drafting_counts import phrase_of
from .report import row_keys
from .summary import OVERALL

if TYPE_CHECKING:
    from rich.table import Table


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True
    )


def overview_table(results: Mapping[str, Any]) -> Table:
    """One line per method: overall figures and whether the output is that of plain decoding."""
    table = _table(f"{results['target']['name']} on {results['benchmark']['name']}")
    table.add_column("method", overflow="fold")
    for column in (
        "accepted\nlength",
        "tokens/s",
        "speed-up",
        "speed-up\n(re-tok.)",
        "forwards\n/token",
        "identical",
    ):
        table.add_column(column, justify="right")
    for method in results["methods"]:
        figures, outputs = method["summary"][OVERALL], method["summary"]["outputs"]
        is_baseline = method is results["methods"][0]
        same = "–" if outputs is None else f"{outputs['identical']} of {outputs['compared']}"
        table.add_row(
            method["name"],
            _number(figures["mean_accepted_length"]),
            _number(figures["tokens_per_s"], 1),
            _number(figures["speedup"]),
            _number(figures["speedup_retokenised"]),
            _number(figures["target_forwards_per_token"], 3),
            "baseline" if is_baseline else same,
        )
    return table


def category_table(results: Mapping[str, Any]) -> Table:
    """One line per task: accepted length and speed-up of every method but the baseline."""
    table = _table("accepted length and speed-up by task")
    table.add_column("task")
    table.add_column("questions", justify="right")
    for method in results["methods"][1:]:
        table.add_column(method["name"], justify="right", overflow="fold")
    baseline = results["methods"][0]["summary"]
    for section, name, shown in row_keys(results):
        groups = [
            method["summary"][section] if section == OVERALL else method["summary"][section][name]
            for method in results["methods"][1:]
        ]
        questions = (baseline[section] if section == OVERALL else baseline[section][name])["questions"]
        cells = [f"{_number(g['mean_accepted_length'])}  {_number(g['speedup'])}x" for g in groups]
        table.add_row(shown, str(questions), *cells)
    return table


def count_lines(results: Mapping[str, Any]) -> list[str]:
    """One sentence per method whose proposer counts what drafting costs it beside passes of the target."""
    return [
        f"{method['name']}: {phrase_of(method['summary']['counts'])}"
        for method in results["methods"]
        if phrase_of(method["summary"]["counts"])
    ]


def divergence_lines(results: Mapping[str, Any]) -> list[str]:
    """One sentence per method whose greedy output is not that of plain decoding."""
    lines = []
    for method in results["methods"][1:]:
        outputs = method["summary"]["outputs"]
        if outputs and outputs["first"]:
            first = outputs["first"]
            lines.append(
                f"{method['name']} differs from plain decoding in {len(outputs['divergent'])} of "
                f"{outputs['compared']} questions, first at question {first['question_id']}, "
                f"turn {first['turn'] + 1}, token {first['position']}"
            )
    return lines


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
