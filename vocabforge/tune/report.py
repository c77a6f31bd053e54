"""A tuning run for people: tables for the terminal, and a self-contained HTML page of the same tables with a chart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.console import DataCell, DataTable, FactList
from ..decode.build.recipe import PLAIN
from ..evaluate.reports.page import (
    Block,
    CodeBlock,
    PageCard,
    PageChart,
    PageSection,
    ReportPage,
    render_report_page,
)
from ..evaluate.reports.plots import INK, MUTED, PAPER, RULE, method_colour, method_marker, render_chart
from ..evaluate.reports.tables import figure_cell, number
from .outcome import BatchRow, CandidateRow, Recommendation, TuneCheck, TuneResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERMINAL_ROWS = 12  # of the ways; the page has all
_CHART_IN = 4.0


def ways_table(results: TuneResults, batch: int, most: int | None = None) -> DataTable:
    """The ways of one batch size, the best first, plain decoding last."""
    ways, looks = _ranked(results, batch), _looks(results)
    plain = next(row for row in results.plain if row.batch == batch)
    cells: list[list[object]] = [
        [
            DataCell(row.name, look=looks[row.head]),
            figure_cell(found.tokens_per_s, 1),
            number(found.speedup),
            None if row.accepted is None else figure_cell(row.accepted),
            DataCell(_ms(found) + "?" * bool(found.warnings), tip="; ".join(found.warnings)),
            row.prompts,
        ]
        for row, found in ways[:most]
    ]
    rate = figure_cell(plain.tokens_per_s, 1)
    cells.append([DataCell(PLAIN, look=0), rate, "1.00", "1.00", _ms(plain), results.prompts["measured"]])
    more = "" if most is None or len(ways) <= most else f" {len(ways) - most} more are in the report."
    return DataTable(
        f"Tokens a second, predicted{_side_by_side(results, batch)}"
        + (f" for the machine of {results.what_if}" if results.what_if else ""),
        ("way<", "tokens/s", "speed-up", "tokens a cycle", "cycle, ms", "prompts"),
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
        ("way<", "predicted", "measured", "error", "rank"),
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
    first = results.recommendations[0]
    sections = [_section(results, one) for one in results.recommendations]
    if results.check is not None:
        sections.append(PageSection("Predicted and measured", [check_table(results.check)], "check"))
    measured: list[Block] = [FactList(_facts(results)), CodeBlock(" ".join(results.command), "Command")]
    sections.append(PageSection("How it was measured", measured, "measured"))
    rate = figure_cell(first.tokens_per_s, 1)
    source = "the latency file" if results.what_if else "this machine"
    page = ReportPage(
        "tune" + (" – what if" if results.what_if else ""),
        results.target,
        sections,
        lead=headline(results, first),
        warnings=results.remarks,
        cards=[
            PageCard("Predicted tokens/s", rate.text, f"{rate.under}, from {source}".removeprefix(", ")),
            PageCard("Over plain decoding", f"{number(first.speedup)}×", "both predicted"),
        ],
    )
    return render_report_page(page)


def _section(results: TuneResults, one: Recommendation) -> PageSection:
    heads, looks = {row.head: row.scores for row in results.candidates}, _looks(results)
    chart = PageChart(
        "Accepted length and cycle time",
        "Grey lines are equal tokens a second, prompts' own passes aside. The star is recommended, hollow marks are "
        "chains.",
        speed_chart(results, one),
        [(0, PLAIN), *((looks[head], f"{head} ({scores})") for head, scores in heads.items())],
    )
    blocks: list[Block] = [chart, ways_table(results, one.batch)]
    if len(results.recommendations) > 1:
        blocks.insert(0, headline(results, one))
    title = f"Recommended{_side_by_side(results, one.batch)}: {one.method}"
    return PageSection(title, blocks, f"batch-{one.batch}")


def speed_chart(results: TuneResults, one: Recommendation) -> str:
    """Accepted length over cycle time; straight lines through the origin are equal tokens a second."""
    looks, plain = _looks(results), next(row for row in results.plain if row.batch == one.batch)
    ways = [
        (1e3 * (found.cycle.value or 0.0), row.accepted.value or 0.0, looks[row.head], row)
        for row, found in _ranked(results, one.batch)
        if row.accepted is not None
    ]
    plain_ms = 1e3 * (plain.cycle.value or 0.0)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        right = 1.1 * max(plain_ms, *(ms for ms, *_ in ways))
        top = 1.1 * max(1.0, *(length for _, length, *_ in ways))
        slopes = [length / ms for ms, length in [(plain_ms, 1.0), *(way[:2] for way in ways)]]
        for rate in MaxNLocator(5).tick_values(0, 1e3 * one.batch * max(slopes))[1:]:
            slope = rate / 1e3 / one.batch
            end = min(right, top / slope)
            axes.plot([0, end], [0, slope * end], color=RULE, linewidth=1.0, zorder=1)
            text: dict[str, Any] = {"color": MUTED, "fontsize": "small", "annotation_clip": False}
            axes.annotate(
                f"{rate:,.4g}/s",
                (end, slope * end),
                xytext=(3, 0) if end == right else (0, 2),
                textcoords="offset points",
                ha="left" if end == right else "center",
                va="center" if end == right else "bottom",
                **text,
            )
        for ms, length, look, row in [*ways, (plain_ms, 1.0, 0, None)]:
            name, colour = PLAIN if row is None else row.name, method_colour(look)
            best, hollow = name == one.method, row is not None and row.method.tree == "chain"
            axes.plot(
                ms,
                length,
                linestyle="none",
                marker="*" if best else method_marker(look),
                markersize=15 if best else 6.5,
                color=colour,
                markerfacecolor=PAPER if hollow and not best else colour,
                markeredgecolor=INK if best else colour,
                zorder=4 if best else 3,
            )
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        axes.set_xlabel("cycle, ms")
        axes.set_ylabel("tokens committed a cycle")

    return render_chart(f"speed-{one.batch}", _CHART_IN, draw)


def _ranked(results: TuneResults, batch: int) -> list[tuple[CandidateRow, BatchRow]]:
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    return sorted(rows, key=lambda pair: -(pair[1].tokens_per_s.value or 0.0))


def _looks(results: TuneResults) -> Mapping[str, int]:
    """Name of each draft head -> number of its colour; 0 is plain decoding's."""
    names = dict.fromkeys(row.head for row in results.candidates)
    return {name: index for index, name in enumerate(names, start=1)}


def _side_by_side(results: TuneResults, batch: int) -> str:
    return f", {batch} side by side" if len(results.recommendations) > 1 else ""


def _ms(row: BatchRow) -> str:
    return number(None if row.cycle.value is None else row.cycle.value * 1e3)


def _facts(results: TuneResults) -> dict[str, Any]:
    latency, here, there = results.latency, results.environment, results.latency["environment"]
    where = [there.get("gpu"), there.get("processor"), f"{there.get('threads')} threads", latency["dtype"]]
    where.append("cycles captured as graphs" if latency["graphs"] else None)
    unknown = [row.name for row in results.candidates if not row.batches]
    return {
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
