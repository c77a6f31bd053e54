"""A comparison of evaluations: its tables, on a terminal and on a page, and its charts."""

from __future__ import annotations

from ...core.console import DataCell, DataTable, FactList
from ..reports.page import Block, CodeBlock, PageChart, PageSection, ReportPage, render_report_page
from ..reports.plots import Bar, bar_rows
from ..reports.tables import figure_cell
from ..results.schema import Figure
from ..results.summary import OVERALL
from .figures import KINDS, Verdict
from .results import DifferenceRow, MethodRow, RunComparison

_MARKS = {"better": "▲", "worse": "▼", "no difference shown": "=", "not judged": ""}
_TONES = {"better": "good", "worse": "bad", "no difference shown": "", "not judged": ""}
_BY_TASK = ("accepted_length", "speedup")


def comparison_tables(comparison: RunComparison) -> dict[str, DataTable]:
    """Runs, methods, differences, figures by task, outputs, facts that differ; those that have a row."""
    tables = {"runs": _run_table(comparison), "methods": _method_table(comparison)}
    if comparison.differences:
        tables["differences"] = _difference_table(comparison)
    if len(comparison.groups) > 2 and comparison.differences:
        tables["tasks"] = _task_table(comparison)
    if comparison.outputs:
        tables["outputs"] = DataTable(
            "outputs between runs, by token id",
            ["method<", "in another run<", "identical", "they differ<"],
            [
                [
                    row.first,
                    row.second,
                    DataCell(
                        f"{row.identical:,} of {row.compared:,}",
                        tone="" if row.identical == row.compared else "bad",
                    ),
                    row.place,
                ]
                for row in comparison.outputs
            ],
            "Greedy outputs, first run. Rounding may differ between machines and versions of PyTorch.",
        )
    if comparison.differing:
        tables["facts"] = DataTable(
            "what differs between the runs",
            ["fact<", *(f"{row.label}<" for row in comparison.runs)],
            [
                [name.replace("_", " "), *(values[row.label] for row in comparison.runs)]
                for name, values in comparison.differing.items()
            ],
        )
    return tables


def method_looks(comparison: RunComparison) -> dict[str, int]:
    """Method -> number of its colour and marker; plain decoding has that of the baseline in every run."""
    drafting = [row.name for row in comparison.methods if not row.baseline]
    return {row.name: 0 for row in comparison.methods} | {
        name: index for index, name in enumerate(drafting, start=1)
    }


def _run_table(comparison: RunComparison) -> DataTable:
    """One line a run: how fast its machine decoded plainly."""
    count = len(comparison.runs)
    rows = []
    for row in comparison.runs:
        drift: str | DataCell = "reference"
        if row.label != comparison.reference_run:
            drift = _signed_cell(row.drift, 1)
        rows.append(
            [
                row.label,
                row.created.replace("T", " ").replace("Z", ""),
                row.machine + 1,
                len(row.seeds) * row.repeats,
                row.answered,
                figure_cell(row.plain_tokens_per_s, 1),
                drift,
            ]
        )
    title = f"{comparison.target} on {comparison.benchmark}: {comparison.questions:,} questions in "
    title += f"all of {count} runs" if count > 1 else "1 run"
    columns = [
        "run<",
        "measured<",
        "machine",
        "passes",
        "answered",
        "plain tokens/s",
        "against the reference",
    ]
    return DataTable(title, columns, rows)


def _method_table(comparison: RunComparison) -> DataTable:
    """One line a method: its overall figures with their intervals."""
    looks, shown, rows = method_looks(comparison), comparison.kinds(), []
    for row in comparison.methods:
        same = "–" if row.compared is None else f"{row.identical:,} of {row.compared:,}"
        rows.append(
            [
                DataCell(row.name, look=looks[row.name]),
                *(_figure(row.figures[OVERALL].get(name, Figure()), name) for name in shown),
                DataCell("baseline" if row.baseline else same, tone="bad" if row.faults else ""),
            ]
        )
    best = next(at for at, row in enumerate(comparison.methods) if row.name == comparison.reference)
    titles = [KINDS[name].title.replace("/token", " /token") for name in shown]
    return DataTable(
        "methods, with 95% intervals over questions",
        ["method<", *titles, "identical to plain"],
        rows,
        strong=best,
    )


def _difference_table(comparison: RunComparison) -> DataTable:
    """One line a method and figure: its difference to the reference, and whether it is one."""
    looks, rows, last = method_looks(comparison), [], ""
    for row in comparison.differences_of(OVERALL).values():
        cell = _signed_cell(row.difference, KINDS[row.figure].digits)
        relative = "–" if row.relative is None else f"{row.relative:+.1%}"
        verdict = f"{row.verdict}: {row.reason}" if row.reason else row.verdict
        name = DataCell(row.method, look=looks[row.method]) if row.method != last else ""
        title = KINDS[row.figure].title
        rows.append(
            [name, title, cell.text, cell.under or "–", relative, DataCell(verdict, tone=_TONES[row.verdict])]
        )
        last = row.method
    columns = ["method<", "figure<", "difference", "95% interval", "relative", "verdict<"]
    note = (
        "A difference counts as one only if its interval excludes 0. Intervals are over questions: they do not include "
        "what a machine does from one run to the next. Of twenty rows without any true difference about one shows one "
        "by chance."
    )
    return DataTable(f"differences to {comparison.reference}", columns, rows, note)


def _task_table(comparison: RunComparison) -> DataTable:
    """Accepted length and speed-up by task; a mark tells what is shown against the reference."""
    drafting = [row for row in comparison.methods if not row.baseline]
    rows = []
    for group, questions in comparison.groups.items():
        found = comparison.differences_of(group)
        cells = ["  ".join(_marked(row, group, name, found) for name in _BY_TASK) for row in drafting]
        rows.append([group, questions, *cells])
    legend = ", ".join(
        f"{_MARKS[verdict]} {text}"
        for verdict, text in (
            ("better", "better"),
            ("worse", "worse"),
            ("no difference shown", "not shown to differ"),
        )
    )
    columns = ["task<", "questions", *(row.name for row in drafting)]
    title = f"by task: accepted length, speed-up ({legend} than {comparison.reference})"
    return DataTable(title, columns, rows, strong=0)


def _marked(row: MethodRow, group: str, figure: str, found: dict[tuple[str, str], DifferenceRow]) -> str:
    difference = found.get((row.name, figure))
    mark = _MARKS[difference.verdict] if difference else ""
    return _figure(row.figures[group][figure], figure).text + mark


def _figure(figure: Figure, name: str) -> DataCell:
    return figure_cell(figure, KINDS[name].digits, KINDS[name].unit)


def _signed_cell(figure: Figure | None, digits: int) -> DataCell:
    """``+0.12``, and its interval ``[-0.12, +0.36]``; dashes without one."""
    if figure is None or figure.value is None:
        return DataCell("–")
    known = figure.low is not None and figure.high is not None
    between = f"[{figure.low:+,.{digits}f}, {figure.high:+,.{digits}f}]" if known else ""
    return DataCell(f"{figure.value:+,.{digits}f}", between)


def render_comparison(comparison: RunComparison) -> str:
    """HTML text of a comparison; loads nothing from anywhere."""
    tables = comparison_tables(comparison)

    def section(key: str, title: str, charts: list[PageChart] | None = None) -> PageSection:
        return PageSection(title, [*(charts or []), *([tables[key]] if key in tables else [])], key)

    drafting = sum(not row.baseline for row in comparison.methods)
    runs = len(comparison.runs)
    temperature = (
        "greedy decoding" if comparison.greedy else f"temperature {comparison.settings['temperature']}"
    )
    how: list[Block] = [FactList(comparison.settings, "The same in all runs" if runs > 1 else "Settings")]
    for row in comparison.runs:
        machine = {name.replace("_", " "): value for name, value in row.machine_facts.items()}
        how += [
            FactList({"folder": row.folder, "hash": row.hash[:16], **machine}, row.label),
            CodeBlock(row.command, f"Command of {row.label}"),
        ]
    return render_report_page(
        ReportPage(
            "comparison",
            f"{comparison.target} on {comparison.benchmark}",
            [
                section("methods", "Methods"),
                section(
                    "differences", f"Differences to {comparison.reference}", _difference_charts(comparison)
                ),
                section("tasks", "By task"),
                section("runs", "Runs"),
                section("outputs", "Outputs between runs"),
                section("facts", "What differs between the runs"),
                PageSection("How they were measured", how, "again"),
            ],
            lead=headline(comparison),
            about=f"{runs} run{'s' if runs > 1 else ''}, {drafting} method{'s' if drafting != 1 else ''} besides plain "
            f"decoding, {comparison.questions:,} questions that all of them answered, {temperature}, at most "
            f"{comparison.settings['max new tokens']} new tokens a turn. Ranges are 95% intervals over questions. A "
            "speed-up is over the plain decoding of the same run.",
            warnings=[f"{line[:1].upper()}{line[1:]}." for line in comparison.warnings],
        )
    )


def headline(comparison: RunComparison) -> str:
    """The comparison in one sentence: what is faster than the reference, and whether that is sure."""
    said: dict[Verdict, list[str]] = {}
    for row in comparison.differences_of(OVERALL).values():
        if row.figure == "speedup":
            said.setdefault(row.verdict, []).append(row.method)
    words: dict[Verdict, str] = {
        "better": "faster",
        "worse": "slower",
        "no difference shown": "not shown to differ in speed",
        "not judged": "not compared in speed",
    }
    parts = [
        f"{', '.join(said[verdict])} {'is' if len(said[verdict]) == 1 else 'are'} {text}"
        for verdict, text in words.items()
        if verdict in said
    ]
    return f"Against {comparison.reference}: {'; '.join(parts) or 'nothing to compare'}."


def _difference_charts(comparison: RunComparison) -> list[PageChart]:
    """One chart a figure: each method's difference to the reference, with its interval."""
    looks, charts = method_looks(comparison), []
    for name in comparison.kinds():
        kind = KINDS[name]
        bars = [
            Bar(
                looks[row.method],
                row.method,
                _signed_cell(found, kind.digits).text,
                found.value,
                found.low,
                found.high,
            )
            for row in comparison.differences_of(OVERALL).values()
            if row.figure == name and (found := row.difference) is not None and found.value is not None
        ]
        if bars:
            better = "more is better" if kind.more_is_better else "fewer is better"
            note = f"Difference to {comparison.reference} with its 95% interval; {better}"
            svg = bar_rows(f"diff-{name.replace('_', '-')}", kind.axis, bars, dots=True)
            charts.append(PageChart(kind.title.capitalize(), note, svg))
    return charts
