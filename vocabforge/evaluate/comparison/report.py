"""Table of a comparison of evaluations, for a terminal and an HTML page."""

from __future__ import annotations

from ...core.console import DataCell, DataTable, FactList
from ..reports.page import Block, CodeBlock, PageSection, ReportPage, render_report_page
from ..reports.tables import figure_cell, interval, number
from ..results.intervals import Verdict, verdict_of
from ..results.schema import Figure
from ..results.summary import OVERALL
from .compare import FIGURES, MethodRow, RunComparison

# Verdict -> mark and tone in the table, wording of the headline.
_WORDS: dict[Verdict, tuple[str, str, str]] = {
    "better": (" ▲", "good", "faster"),
    "worse": (" ▼", "bad", "slower"),
    "no difference shown": (" =", "", "not shown to differ in speed"),
    "not compared": ("", "", "not compared in speed"),
}


def comparison_table(comparison: RunComparison) -> DataTable:
    """Return a table of every method by task: figures and ratios to the reference with 95% intervals."""
    rows: list[list[object]] = []
    for group, questions in comparison.groups.items():
        for look, row in enumerate(comparison.methods):
            if row.baseline and group != OVERALL:
                continue
            cells = [_cell(row, group, name) for name in FIGURES]
            rows.append([DataCell(row.name, look=look), DataCell(group, f"{questions:,} asked"), *cells])
    note = (
        "Under a figure: its ratio to the reference with the 95% interval over questions, paired. ▲ more, ▼ less: the "
        "interval excludes 1; = it does not. Intervals do not include the machine's variation between runs; of "
        "twenty rows without a true difference, about one shows one by chance. A speed-up is over the plain decoding "
        "of its own run."
    )
    return DataTable(
        f"{comparison.target} on {comparison.benchmark}: ratios to {comparison.reference}",
        ["method<", "task<", "accepted length", "speed-up", "tokens/s"],
        rows,
        note,
        strong=next(at for at, row in enumerate(comparison.methods) if row.name == comparison.reference),
    )


def _cell(row: MethodRow, group: str, name: str) -> DataCell:
    found = figure_cell(row.figures[group][name], 1 if name == "tokens_per_s" else 2)
    compared = row.ratios.get(group, {}).get(name)
    if compared is None:
        return DataCell(found.text)
    mark, tone, _ = _WORDS[verdict_of(compared)]
    return DataCell(found.text + mark, _ratio(compared), tone)


def _ratio(found: Figure) -> str:
    """Format as ``×1.08 [1.02–1.13]``, or a dash without a value."""
    if found.value is None:
        return "–"
    between = interval(found)
    return f"×{number(found.value)}" + (f" [{between}]" if between else "")


def headline(comparison: RunComparison) -> str:
    """Summarise the comparison in a sentence: methods faster than the reference, and how certain that is."""
    said: dict[Verdict, list[str]] = {}
    for row in comparison.methods:
        if row.ratios:
            said.setdefault(verdict_of(row.ratios[OVERALL]["speedup"]), []).append(row.name)
    parts = [
        f"{', '.join(said[verdict])} {'is' if len(said[verdict]) == 1 else 'are'} {text}"
        for verdict, (*_, text) in _WORDS.items()
        if verdict in said
    ]
    by = ", by speed-up over each run's own plain decoding" if len(comparison.runs) > 1 else ""
    return f"Against {comparison.reference}{by}: {'; '.join(parts) or 'nothing to compare'}."


def render_comparison(comparison: RunComparison) -> str:
    """Render a comparison as a self-contained HTML page."""
    how: list[Block] = [FactList(comparison.settings, "The same in all runs")]
    for run in comparison.runs:
        facts = {"folder": run.folder, "hash": run.hash[:16], "measured": run.created, **run.machine}
        how += [FactList(facts, run.label), CodeBlock(run.command, f"Command of {run.label}")]
    return render_report_page(
        ReportPage(
            "comparison",
            f"{comparison.target} on {comparison.benchmark}",
            [
                PageSection("Methods", [comparison_table(comparison)], "methods"),
                PageSection("How they were measured", how, "again"),
            ],
            lead=headline(comparison),
            about=f"{comparison.questions:,} questions that all runs answered, temperature "
            f"{comparison.settings['temperature']}, at most {comparison.settings['max new tokens']} new tokens a turn.",
            warnings=[f"{line[:1].upper()}{line[1:]}." for line in comparison.notes],
        )
    )
