"""The tables of a comparison on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..results import Figure
from ..summary import OVERALL
from ..wide_tables import Name, TaskTable, figure_cell, simple_table
from .figures import KINDS
from .outputs import place_of
from .results import DifferenceRow, MethodRow, RunComparison

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

MARKS = {"better": "▲", "worse": "▼", "no difference shown": "=", "not judged": ""}
_STYLES = {"better": "green", "worse": "red"}
_BY_TASK = ("accepted_length", "speedup")


def comparison_tables(comparison: RunComparison) -> list[RenderableType]:
    """Runs, methods, differences, figures by task, outputs, facts that differ; those that have a line."""
    tables: list[RenderableType] = [run_table(comparison), method_table(comparison)]
    if comparison.differences:
        tables.append(difference_table(comparison))
    if len(comparison.groups) > 2 and comparison.differences:
        tables.append(task_table(comparison))
    if comparison.outputs:
        tables.append(output_table(comparison))
    if comparison.differing:
        tables.append(facts_table(comparison))
    return tables


def run_table(comparison: RunComparison) -> Table:
    """One line a run: how fast its machine decoded plainly."""
    table = simple_table(
        f"{comparison.target} on {comparison.benchmark}: {comparison.questions:,} questions in "
        + (f"all of {len(comparison.runs)} runs" if len(comparison.runs) > 1 else "1 run")
    )
    for name in ("run", "measured", "machine"):
        table.add_column(name, overflow="fold")
    for name in ("passes", "plain tokens/s", "against the\nreference's run"):
        table.add_column(name, justify="right")
    home = comparison.reference_run
    for row in comparison.runs:
        drift = "reference" if row.label == home else _signed_figure(row.drift, "tokens_per_s")
        table.add_row(
            Name(row.label),
            row.created,
            str(row.machine + 1),
            str(len(row.seeds) * row.repeats),
            figure_text(row.plain_tokens_per_s, "tokens_per_s"),
            drift,
        )
    return table


def method_table(comparison: RunComparison) -> Table:
    """One line a method: its overall figures with their intervals."""
    table = simple_table("methods, with 95% intervals over questions")
    table.add_column("method")
    shown = comparison.kinds()
    for name in shown:
        table.add_column(_heading(name), justify="right", no_wrap=True)
    table.add_column("identical\nto plain", justify="right", no_wrap=True)
    for row in comparison.methods:
        figures = row.figures[OVERALL]
        cells = [figure_text(figures.get(name, Figure()), name) for name in shown]
        table.add_row(Name(row.name), *cells, identical_text(row))
    return table


def difference_table(comparison: RunComparison) -> Table:
    """One line a method and figure: its difference to the reference, and whether it is one."""
    table = simple_table(f"differences to {comparison.reference}")
    table.add_column("method")
    table.add_column("figure", no_wrap=True)
    for name in ("difference", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    last = ""
    for row in comparison.differences:
        if row.group != OVERALL:
            continue
        found = row.difference
        table.add_row(
            Name(row.method if row.method != last else ""),
            KINDS[row.figure].title,
            _with_share(signed(found.value if found else None, KINDS[row.figure].digits), row.relative),
            signed_interval(found, KINDS[row.figure].digits),
            _verdict(row),
        )
        last = row.method
    return table


def task_table(comparison: RunComparison) -> TaskTable:
    """Accepted length and speed-up by task; a mark tells what is shown against the reference."""
    columns = [
        (
            row.name,
            [
                "  ".join(
                    _marked(row, group, figure, comparison.differences_of(group).get((row.name, figure)))
                    for figure in _BY_TASK
                )
                for group in comparison.groups
            ],
        )
        for row in comparison.methods
        if not row.baseline
    ]
    rows = [(group, f"{questions:,}") for group, questions in comparison.groups.items()]
    return TaskTable(
        f"by task: accepted length, speed-up ({_legend()} than {comparison.reference})", rows, columns
    )


def output_table(comparison: RunComparison) -> Table:
    """Greedy outputs of the same method in two runs."""
    table = simple_table("outputs between runs, by token id")
    for name in ("method", "in another run"):
        table.add_column(name, overflow="fold")
    table.add_column("identical", justify="right")
    table.add_column("they part", overflow="fold")
    for row in comparison.outputs:
        table.add_row(
            Name(row.first),
            Name(row.second),
            f"{row.identical:,} of {row.compared:,}",
            place_of(row),
            style="" if row.identical == row.compared else "yellow",
        )
    return table


def facts_table(comparison: RunComparison) -> Table:
    """What was not the same, and need not be."""
    table = simple_table("what differs between the runs")
    table.add_column("fact")
    for row in comparison.runs:
        table.add_column(_text(row.label), overflow="fold")
    for name, values in comparison.differing.items():
        table.add_row(name.replace("_", " "), *(_text(values[row.label]) for row in comparison.runs))
    return table


def figure_text(figure: Figure, name: str) -> Text:
    """The value, and under it the interval, in the figure's digits."""
    return figure_cell(figure, KINDS[name].digits)


def identical_text(row: MethodRow) -> str:
    """Outputs that are those of plain decoding in the same run."""
    if row.baseline:
        return "baseline"
    return "–" if row.compared is None else f"{row.identical:,} of {row.compared:,}"


def _signed_figure(figure: Figure | None, name: str) -> Text:
    from rich.text import Text

    if figure is None or figure.value is None:
        return Text("–")
    digits = KINDS[name].digits
    return Text(signed(figure.value, digits)).append(f"\n{signed_interval(figure, digits)}", style="dim")


def signed_interval(figure: Figure | None, digits: int) -> str:
    """``[-0.12, +0.03]``, or a dash where there is none."""
    if figure is None or figure.low is None or figure.high is None:
        return "–"
    return f"[{figure.low:+,.{digits}f}, {figure.high:+,.{digits}f}]"


def signed(value: float | None, digits: int) -> str:
    """``+0.12``; a dash for None."""
    return "–" if value is None else f"{value:+,.{digits}f}"


def _with_share(difference: str, relative: float | None) -> Text:
    """The difference, and under it the share of the reference that it is."""
    from rich.text import Text

    text = Text(difference)
    return text if relative is None else text.append(f"\n{relative:+.1%}", style="dim")


def _heading(name: str) -> str:
    return KINDS[name].title.replace(" ", "\n").replace("/token", "\n/token")


def _verdict(row: DifferenceRow) -> Text:
    from rich.text import Text

    text = row.verdict if not row.reason else f"{row.verdict}: {row.reason}"
    return Text(text, style=_STYLES.get(row.verdict, ""))


def _marked(row: MethodRow, group: str, figure: str, found: DifferenceRow | None) -> str:
    value = row.figures[group][figure].value
    unit = "×" if figure == "speedup" else ""
    text = "–" if value is None else f"{value:,.{KINDS[figure].digits}f}{unit}"
    return text + (MARKS[found.verdict] if found else "")


def _legend() -> str:
    return f"{MARKS['better']} better, {MARKS['worse']} worse, {MARKS['no difference shown']} not shown to differ"


def _text(value: str) -> Text:
    from rich.text import Text

    return Text(value)
