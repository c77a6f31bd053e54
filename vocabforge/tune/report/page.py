"""A tuning run for people: tables for the terminal, and a self-contained HTML page of the same tables with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.console import DataCell, DataTable, FactList
from ...decode.build.recipe import PLAIN
from ...evaluate.reports.page import (
    Block,
    CodeBlock,
    Folded,
    PageCard,
    PageChart,
    PageSection,
    ReportPage,
    render_report_page,
)
from ...evaluate.reports.plots import INK, MUTED, PAPER, RULE, method_colour, method_marker, render_chart
from ...evaluate.results.schema import Figure
from .outcome import BatchRow, CandidateRow, Recommendation, TuneCheck, TuneResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TERMINAL_ROWS, PAGE_ROWS = 12, 15  # of the ways; a page folds the others
_STEPS = (1, 2, 2.5, 5, 10)  # between two lines of equal speed, times a power of ten
_CHART_IN = 4.0


def ways_table(results: TuneResults, batch: int, first: int = 0, last: int | None = None) -> DataTable:
    """The ways of one batch size, the best first, plain decoding behind the last of them."""
    rows, looks = _ranked(results, batch), _looks(results)
    plain = next(row for row in results.plain if row.batch == batch)
    cells: list[list[object]] = [
        [
            DataCell(row.name, look=looks[row.head]),
            _figure(found.tokens_per_s, 1),
            _number(found.speedup, 2),
            None if row.accepted is None else _figure(row.accepted, 2),
            DataCell(
                _number(found.cycle.value * 1e3, 2) + "?" * bool(found.warnings),
                tip="; ".join(found.warnings),
            ),
            row.prompts,
        ]
        for row, found in rows[first:last]
    ]
    if not first:
        rate, cycle = _figure(plain.tokens_per_s, 1), _number(plain.cycle.value * 1e3, 2)
        cells.append([DataCell(PLAIN, look=0), rate, "1.00", "1.00", cycle, results.prompts["measured"]])
    title = "Tokens a second, predicted" + _side_by_side(results, batch)
    left = len(rows) - TERMINAL_ROWS
    more = f"; {left} more in the report" if last == TERMINAL_ROWS and left > 0 else ""
    return DataTable(
        title + (f" for the machine of {results.what_if}" if results.what_if else ""),
        ("way<", "tokens/s", "speed-up", "tokens a cycle", "cycle, ms", "prompts"),
        cells,
        f"Tokens/s and cycles are predicted, tokens a cycle measured. Fewer prompts: the search stopped there{more}.",
    )


def others_table(one: Recommendation) -> DataTable:
    """What the others lack."""
    rows = [
        [
            other.name,
            *(f"{share:+.1%}" for share in (other.tokens_per_s, other.accepted, other.cycle)),
            "yes" if other.sure else "no",
        ]
        for other in one.runner_ups
    ]
    return DataTable(
        f"Compared with {one.method}",
        ("way<", "tokens/s", "tokens a cycle", "cycle", "told apart"),
        rows,
        "Told apart: the intervals of tokens/s do not overlap.",
    )


def check_table(check: TuneCheck) -> DataTable:
    """Predictions and what eval measured."""
    rows = [
        [
            row.name,
            _figure(row.predicted, 1),
            _figure(row.measured, 1),
            f"{row.error:+.1%}",
            f"{row.predicted_rank} / {row.measured_rank}" if row.predicted_rank else None,
        ]
        for row in [*check.rows, check.plain]
    ]
    order = ", in the same order" if check.same_order else ", in another order"
    top = (
        f"the measured ones{order}"
        if check.same_top
        else f"not the measured ones: {', '.join(check.measured_top)}"
    )
    return DataTable(
        f"Predicted and measured by eval, {check.questions} other questions",
        ("way<", "predicted", "measured", "error", "rank"),
        rows,
        f"Off by {check.mean_error:.1%} on average, {check.worst_error:.1%} at worst; speed-ups over plain decoding by "
        f"{check.speedup_error:.1%}. The predicted top three are {top}.",
    )


def headline(results: TuneResults, one: Recommendation) -> str:
    """The recommendation in a sentence."""
    where = _side_by_side(results, one.batch)
    if one.method == PLAIN:
        return f"Recommended{where}: plain decoding. {' '.join(one.why)}"
    figure = _figure(one.tokens_per_s, 1)
    return (
        f"Recommended{where}: {one.method}, {figure.text} [{figure.under}] tokens/s predicted, "
        f"{_number(one.speedup, 2)} times plain decoding. {' '.join(one.why)}"
    )


def render_report(results: TuneResults) -> str:
    """HTML text; it loads nothing from anywhere."""
    first = results.recommendations[0]
    sections = [_section(results, one) for one in results.recommendations]
    if results.check is not None:
        sections.append(PageSection("Predicted and measured", [check_table(results.check)], "check"))
    left: dict[str, list[str]] = {}
    for row in results.candidates:
        if not row.batches:
            left.setdefault(row.state, []).append(row.name)
    measured: list[Block] = [FactList(_facts(results)), CodeBlock(" ".join(results.command), "Command")]
    measured += [
        Folded(f"{len(names)} not decoded: {state}", [", ".join(names)]) for state, names in left.items()
    ]
    if notes := results.latency["notes"]:
        measured.append(Folded(f"{len(notes)} remarks on the measured seconds", ["; ".join(notes)]))
    sections.append(PageSection("How it was measured", measured, "measured"))
    page = ReportPage(
        "tune" + (" – what if" if results.what_if else ""),
        results.target,
        sections,
        lead=headline(results, first),
        warnings=results.remarks,
        cards=_cards(results, first),
    )
    return render_report_page(page)


def _section(results: TuneResults, one: Recommendation) -> PageSection:
    heads = {row.head: row.scores for row in results.candidates}
    looks = _looks(results)
    chart = PageChart(
        "Accepted length and cycle time",
        "Grey lines are equal tokens a second, prompts' own passes aside; the staircase joins the ways that none is "
        "both quicker and better than. The star is recommended, hollow marks are chains.",
        pareto_chart(results, one),
        [(0, PLAIN), *((looks[head], f"{head} ({scores})") for head, scores in heads.items())],
    )
    blocks: list[Block] = [chart, others_table(one), ways_table(results, one.batch, last=PAGE_ROWS)]
    if len(results.recommendations) > 1:
        blocks.insert(0, headline(results, one))
    if (more := len(_ranked(results, one.batch)) - PAGE_ROWS) > 0:
        blocks.append(Folded(f"{more} more", [ways_table(results, one.batch, PAGE_ROWS)]))
    title = f"Recommended{_side_by_side(results, one.batch)}: {one.method}"
    return PageSection(title, blocks, f"batch-{one.batch}")


def _cards(results: TuneResults, one: Recommendation) -> list[PageCard]:
    plain = next(row for row in results.plain if row.batch == one.batch)
    rate, source = _figure(one.tokens_per_s, 1), "the latency file" if results.what_if else "this machine"
    cards = [
        PageCard("Predicted tokens/s", rate.text, f"{rate.under}, from {source}".removeprefix(", ")),
        PageCard(
            "Over plain decoding",
            f"{_number(one.speedup, 2)}×",
            f"predicted {_number(plain.tokens_per_s.value, 1)} tokens/s",
        ),
    ]
    if one.method == PLAIN:
        return cards
    best = results.row(one.method)
    found = best.at(one.batch)
    assert best.accepted is not None
    assert found is not None
    length = _figure(best.accepted, 2)
    cycle, step = (_number(row.cycle.value * 1e3, 2) for row in (found, plain))
    return [
        *cards,
        PageCard("Tokens a cycle", length.text, f"measured {length.under}"),
        PageCard("Cycle", f"{cycle} ms", f"plain step {step} ms"),
    ]


def pareto_chart(results: TuneResults, one: Recommendation) -> str:
    """Accepted length over cycle time; straight lines through the origin are equal tokens a second.

    The staircase joins the ways that none is both quicker and better than.
    """
    looks, plain = _looks(results), next(row for row in results.plain if row.batch == one.batch)
    ways = [
        (found.cycle.value * 1e3, row.accepted.value, row)
        for row, found in _ranked(results, one.batch)
        if row.accepted is not None and row.accepted.value is not None
    ]
    points = [*((ms, length) for ms, length, _ in ways), (plain.cycle.value * 1e3, 1.0)]
    rates = contour_rates([1e3 * one.batch * length / ms for ms, length in points])

    def draw(axes: Axes) -> None:
        right, top = 1.08 * max(ms for ms, _ in points), 1.12 * max(length for _, length in points)
        last = 2 * right
        for rate in rates:
            slope = rate / 1e3 / one.batch
            end = min(right, top / slope)
            axes.plot([0, end], [0, slope * end], color=RULE, linewidth=1.0, zorder=1)
            at_right = end == right
            if not at_right and end > last - 0.13 * right:
                continue  # its name would overlap that of the line before
            last = last if at_right else end
            axes.annotate(
                f"{rate:,.0f}/s",
                (end, slope * end),
                xytext=(3, 0) if at_right else (0, 2),
                textcoords="offset points",
                ha="left" if at_right else "center",
                va="center" if at_right else "bottom",
                color=MUTED,
                fontsize="small",
                annotation_clip=False,
            )
        front = frontier([(ms, length) for ms, length, _ in ways])
        axes.step(
            [ms for ms, _ in front], [length for _, length in front], where="post", color=MUTED, linewidth=1.2
        )
        marks = [(ms, length, looks[row.head], row.tree, row.name) for ms, length, row in ways]
        for ms, length, look, tree, name in [*marks, (*points[-1], 0, "", PLAIN)]:
            best, colour = name == one.method, method_colour(look)
            axes.plot(
                ms,
                length,
                linestyle="none",
                marker="*" if best else method_marker(look),
                markersize=15 if best else 6.5,
                color=colour,
                markerfacecolor=PAPER if tree.startswith("chain") and not best else colour,
                markeredgecolor=INK if best else colour,
                markeredgewidth=1.0,
                zorder=4 if best else 3,
            )
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        axes.set_xlabel("cycle, ms")
        axes.set_ylabel("tokens committed a cycle")

    return render_chart(f"pareto-{one.batch}", _CHART_IN, draw)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (milliseconds, accepted length) that no other is both quicker and better than, by time."""
    found: list[tuple[float, float]] = []
    for ms, length in sorted(points, key=lambda point: (point[0], -point[1])):
        if not found or length > found[-1][1]:
            found.append((ms, length))
    return found


def contour_rates(rates: Sequence[float]) -> list[float]:
    """Round numbers from the lowest to above the highest rate, about five of them."""
    highest, lowest = max(rates), min(rates)
    wanted = max(highest - lowest, highest / 10) / 4
    power = 10.0 ** len(str(int(wanted))) / 10 if wanted >= 1 else 0.1
    step = min((size * power for size in _STEPS), key=lambda size: abs(size - wanted))
    return [step * number for number in range(max(int(lowest / step), 1), int(highest / step) + 2)]


def _ranked(results: TuneResults, batch: int) -> list[tuple[CandidateRow, BatchRow]]:
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    return sorted(rows, key=lambda pair: -(pair[1].tokens_per_s.value or 0.0))


def _looks(results: TuneResults) -> Mapping[str, int]:
    """Name of each draft head -> number of its colour; 0 is plain decoding's."""
    names = dict.fromkeys(row.head for row in results.candidates)
    return {name: index for index, name in enumerate(names, start=1)}


def _side_by_side(results: TuneResults, batch: int) -> str:
    return f", {batch} side by side" if len(results.recommendations) > 1 else ""


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _figure(figure: Figure, digits: int) -> DataCell:
    """The value over its interval: ``1.79–1.90``."""
    low, high = figure.low, figure.high
    under = "" if low is None or high is None else f"{low:,.{digits}f}–{high:,.{digits}f}"
    return DataCell(_number(figure.value, digits), under)


def _facts(results: TuneResults) -> dict[str, Any]:
    latency, here = results.latency, results.environment
    there = latency["environment"]
    where = [there.get("gpu"), there.get("processor"), f"{there.get('threads')} threads", latency["dtype"]]
    facts = {
        "target": results.target,
        "drafter": results.drafter,
        "seconds from": ", ".join(str(one) for one in where if one)
        + (", cycles captured as graphs" if latency["graphs"] else ""),
        "typical error of cycles": f"{100 * latency['error']:.1f}%",
        "latency file": f"{latency['file']}, sha256 {latency['sha256'][:16]}",
        "accepted lengths from": f"{results.prompts['measured']} prompts of {results.settings['prompts']}, at most "
        f"{results.settings['new_tokens']} new tokens each, greedy, on {here.get('gpu') or here.get('processor')}",
        "versions": f"vocabforge {results.version}, torch {here.get('torch')}",
    }
    facts |= {f"hash of {role}": digest[:16] for role, digest in results.inputs.items()}
    return facts
