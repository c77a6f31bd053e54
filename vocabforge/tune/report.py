"""A tuning run for people: tables for the terminal, and a self-contained HTML page of the same tables."""

from __future__ import annotations

from typing import Any

from ..core.console import DataTable, FactList
from ..decode.build.recipe import PLAIN
from ..evaluate.reports.page import Block, CodeBlock, PageSection, ReportPage, render_report_page
from ..evaluate.reports.tables import figure_cell, number
from .outcome import BatchRow, CandidateRow, Recommendation, TuneCheck, TuneResults

TERMINAL_ROWS = 12  # of the methods; the page has all


def methods_table(results: TuneResults, batch: int, most: int | None = None) -> DataTable:
    """The methods of one batch size, the best first, plain decoding last."""
    methods = _ranked(results, batch)
    plain = next(row for row in results.plain if row.batch == batch)
    cells: list[list[object]] = [
        [
            row.name,
            figure_cell(found.tokens_per_s, 1),
            number(found.speedup),
            None if row.accepted is None else figure_cell(row.accepted),
            _ms(found),
            row.prompts,
        ]
        for row, found in methods[:most]
    ]
    rate = figure_cell(plain.tokens_per_s, 1)
    cells.append([PLAIN, rate, "1.00", "1.00", _ms(plain), results.prompts["measured"]])
    more = "" if most is None or len(methods) <= most else f" {len(methods) - most} more are in the report."
    return DataTable(
        f"Tokens a second, predicted{_side_by_side(results, batch)}"
        + (f" for the machine of {results.what_if}" if results.what_if else ""),
        ("method<", "tokens/s", "speed-up", "tokens a cycle", "cycle, ms", "prompts"),
        cells,
        "Tokens/s and cycles are predicted, tokens a cycle measured. Fewer prompts: the search stopped there."
        + more,
    )


def check_table(check: TuneCheck) -> DataTable:
    """Predictions and what eval measured."""
    rows = [
        [
            row.name,
            figure_cell(row.predicted, 1),
            figure_cell(row.measured, 1),
            f"{row.error:+.1%}",
            f"{row.predicted_rank} / {row.measured_rank}" if row.predicted_rank else None,
        ]
        for row in check.rows
    ]
    return DataTable(
        f"Predicted and measured by eval, {check.questions} other questions",
        ("method<", "predicted", "measured", "error", "rank"),
        rows,
        f"Off by {check.mean_error:.1%} on average.",
    )


def headline(results: TuneResults, one: Recommendation) -> str:
    """The recommendation in a sentence."""
    where = _side_by_side(results, one.batch)
    if one.method == PLAIN:
        return f"Recommended{where}: plain decoding. {' '.join(one.why)}"
    rate = figure_cell(one.tokens_per_s, 1)
    return (
        f"Recommended{where}: {one.method}, {rate.text} [{rate.under}] tokens/s predicted, "
        f"{number(one.speedup)} times plain decoding. {' '.join(one.why)}"
    )


def render_report(results: TuneResults) -> str:
    """HTML text; it loads nothing from anywhere."""
    sections = [_section(results, one) for one in results.recommendations]
    if results.check is not None:
        sections.append(PageSection("Predicted and measured", [check_table(results.check)], "check"))
    measured: list[Block] = [FactList(_facts(results)), CodeBlock(" ".join(results.command), "Command")]
    sections.append(PageSection("How it was measured", measured, "measured"))
    page = ReportPage(
        "tune" + (" – what if" if results.what_if else ""),
        results.target,
        sections,
        lead=headline(results, results.recommendations[0]),
        warnings=results.remarks,
    )
    return render_report_page(page)


def _section(results: TuneResults, one: Recommendation) -> PageSection:
    blocks: list[Block] = [headline(results, one)] if len(results.recommendations) > 1 else []
    title = f"Recommended{_side_by_side(results, one.batch)}: {one.method}"
    return PageSection(title, [*blocks, methods_table(results, one.batch)], f"batch-{one.batch}")


def _ranked(results: TuneResults, batch: int) -> list[tuple[CandidateRow, BatchRow]]:
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    return sorted(rows, key=lambda pair: -(pair[1].tokens_per_s.value or 0.0))


def _side_by_side(results: TuneResults, batch: int) -> str:
    return f", {batch} side by side" if len(results.recommendations) > 1 else ""


def _ms(row: BatchRow) -> str:
    return number(None if row.cycle.value is None else row.cycle.value * 1e3)


def _facts(results: TuneResults) -> dict[str, Any]:
    latency, here, there = results.latency, results.environment, results.latency["environment"]
    where = [there.get("gpu"), there.get("processor"), f"{there.get('threads')} threads", latency["dtype"]]
    where.append("cycles captured as graphs" if latency["graphs"] else None)
    unknown = [row.name for row in results.candidates if not row.batches]
    found = {
        "target": results.target,
        "drafter": results.drafter,
        "seconds from": ", ".join(str(one) for one in where if one),
        "typical error of cycles": f"{100 * latency['error']:.1f}%",
        "latency file": f"{latency['file']}, sha256 {latency['sha256'][:16]}",
        "not measured": "; ".join(latency["notes"]) or None,
        "accepted lengths from": f"{results.prompts['measured']} prompts of {results.settings['prompts']}, at most "
        f"{results.settings['new_tokens']} new tokens each, greedy, on {here.get('gpu') or here.get('processor')}",
        "not decoded": ", ".join(unknown) or None,
        "versions": f"vocabforge {results.version}, torch {here.get('torch')}",
        **{f"hash of {role}": digest[:16] for role, digest in results.inputs.items()},
    }
    return {name: value for name, value in found.items() if value is not None}
