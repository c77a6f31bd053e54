"""Report of a tuning run: tables for a terminal, and a self-contained HTML page with the same tables."""

from __future__ import annotations

from typing import Any

from ..core.console import DataTable, FactList
from ..decode.build.recipe import PLAIN
from ..evaluate.reports.page import Block, CodeBlock, PageSection, ReportPage, render_report_page
from ..evaluate.reports.tables import figure_cell, number
from .outcome import BatchRow, CandidateRow, Recommendation, TuneResults

TERMINAL_ROWS = 12  # maximum number of methods; the page lists all


def methods_table(results: TuneResults, batch: int, most: int | None = None) -> DataTable:
    """Return the methods of a batch size, sorted by prompts measured and speed-up, plain decoding last."""
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    methods: list[tuple[CandidateRow, BatchRow]] = sorted(
        rows, key=lambda pair: (-pair[0].groups, -(pair[1].speedup.value or 0.0))
    )
    cells: list[list[object]] = [
        [
            row.name,
            figure_cell(found.speedup),
            number(found.tokens_per_s.value, 1),
            None if row.accepted is None else figure_cell(row.accepted),
            number(None if found.cycle is None else found.cycle * 1e3),
            row.groups,
        ]
        for row, found in methods[:most]
    ]
    cells.append([PLAIN, "1.00", number(results.plain[str(batch)], 1), "1.00", None, None])
    more = "" if most is None or len(methods) <= most else f" {len(methods) - most} more are in the report."
    return DataTable(
        f"Speed-up over plain decoding{_side_by_side(results, batch)}",
        ("method<", "speed-up", "tokens/s", "tokens a cycle", "cycle, ms", "groups"),
        cells,
        "Each method is timed in turns with plain decoding. Fewer groups of prompts: the search stopped there."
        + more,
    )


def headline(results: TuneResults, one: Recommendation) -> str:
    """Return the recommendation in a sentence."""
    where = _side_by_side(results, one.batch)
    if one.method == PLAIN:
        return f"Recommended{where}: plain decoding. {' '.join(one.why)}"
    rate = figure_cell(one.speedup)
    interval = f" [{rate.under}]" if rate.under else ""
    return (
        f"Recommended{where}: {one.method}, {rate.text}{interval} times plain decoding. {' '.join(one.why)}"
    )


def render_report(results: TuneResults) -> str:
    """Render the results as a self-contained HTML page."""
    sections = [_section(results, one) for one in results.recommendations]
    blocks: list[Block] = [FactList(_facts(results)), CodeBlock(" ".join(results.command), "Command")]
    sections.append(PageSection("How it was measured", blocks, "measured"))
    lead = headline(results, results.recommendations[0])
    return render_report_page(
        ReportPage("tune", results.target, sections, lead=lead, warnings=results.remarks)
    )


def _section(results: TuneResults, one: Recommendation) -> PageSection:
    blocks: list[Block] = [headline(results, one)] if len(results.recommendations) > 1 else []
    title = f"Recommended{_side_by_side(results, one.batch)}: {one.method}"
    return PageSection(title, [*blocks, methods_table(results, one.batch)], f"batch-{one.batch}")


def _side_by_side(results: TuneResults, batch: int) -> str:
    return f", {batch} side by side" if len(results.recommendations) > 1 else ""


def _facts(results: TuneResults) -> dict[str, Any]:
    here = results.environment
    where = [
        here.get("gpu"),
        here.get("processor"),
        f"{here.get('threads')} threads",
        results.settings["dtype"],
    ]
    unknown = [row.name for row in results.candidates if not row.batches]
    found = {
        "target": results.target,
        "drafter": results.drafter,
        "machine": ", ".join(str(one) for one in where if one),
        "prompts": f"{results.prompts['measured']} of {results.settings['prompts']}, at most "
        f"{results.settings['new_tokens']} new tokens each, greedy",
        "not measured": ", ".join(unknown) or None,
        "versions": f"vocabforge {results.version}, torch {here.get('torch')}",
        **{f"hash of {role}": digest[:16] for role, digest in results.inputs.items()},
    }
    return {name: value for name, value in found.items() if value is not None}
