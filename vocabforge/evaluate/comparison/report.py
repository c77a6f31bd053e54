"""One self-contained HTML page of a comparison of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..page import render_page
from ..plots import INK, PAPER, RULE, dot_chart, method_colour, method_marker, render_chart
from ..report_text import explained, interval, shortened
from ..results import Figure
from ..summary import OVERALL
from .figures import KINDS
from .outputs import place_of
from .results import DifferenceRow, MethodRow, RunComparison
from .terminal import MARKS, identical_text, signed, signed_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BY_TASK = ("accepted_length", "speedup")
_NAME_LENGTH = 26
_UNITS = {"speedup": "×"}
_AXES = {
    "accepted_length": "tokens per verification step",
    "speedup": "times plain decoding",
    "forwards_per_token": "passes of the target per new token",
    "tokens_per_s": "tokens per second",
    "quality": "share of right answers",
}
_DRIFT = {"better": "faster", "worse": "slower"}


def render_comparison(comparison: RunComparison) -> str:
    """HTML text of a comparison; loads nothing from anywhere."""
    drafting = [row for row in comparison.methods if not row.baseline]
    return render_page(
        "comparison.html.j2",
        comparison=comparison,
        home=comparison.reference_run,
        drafting=drafting,
        colour=method_numbers(comparison),
        kinds={name: KINDS[name] for name in comparison.kinds()},
        units=_UNITS,
        cards=_cards(comparison, drafting),
        difference_charts=_difference_charts(comparison),
        task_charts=_task_charts(comparison, drafting) if len(comparison.groups) > 2 else [],
        by_task=_BY_TASK,
        marks=MARKS,
        differences={group: comparison.differences_of(group) for group in comparison.groups},
        headline=headline(comparison),
        explained=explained,
        interval=interval,
        signed_interval=signed_interval,
        signed=signed,
        identical=identical_text,
        place=place_of,
    )


def headline(comparison: RunComparison) -> str:
    """The comparison in one sentence: what is faster than the reference, and whether that is sure."""
    said = {
        verdict: [
            row.method
            for row in comparison.differences
            if (row.group, row.figure, row.verdict) == (OVERALL, "speedup", verdict)
        ]
        for verdict in ("better", "worse", "no difference shown", "not judged")
    }
    parts = [
        f"{', '.join(said[verdict])} {'is' if len(said[verdict]) == 1 else 'are'} {words}"
        for verdict, words in (
            ("better", "faster"),
            ("worse", "slower"),
            ("no difference shown", "not shown to differ in speed"),
            ("not judged", "not compared in speed"),
        )
        if said[verdict]
    ]
    return f"Against {comparison.reference}: {'; '.join(parts) or 'nothing to compare'}."


def method_numbers(comparison: RunComparison) -> dict[str, int]:
    """Method -> number of its colour; plain decoding has that of the baseline in every run."""
    drafting = [row.name for row in comparison.methods if not row.baseline]
    return {row.name: 0 for row in comparison.methods} | {
        name: index for index, name in enumerate(drafting, start=1)
    }


def _cards(comparison: RunComparison, drafting: Sequence[MethodRow]) -> list[dict[str, str]]:
    """Headline: the largest figures of all runs, each with what is shown against the reference."""
    found = []
    marks = comparison.differences_of(OVERALL)
    for name, title in (("speedup", "Largest speed-up"), ("accepted_length", "Largest accepted length")):
        known = [row for row in drafting if row.figures[OVERALL][name].value is not None]
        if not known:
            continue
        best = max(known, key=lambda row: row.figures[OVERALL][name].value or 0.0)
        figure = best.figures[OVERALL][name]
        between = interval(figure, KINDS[name].digits)
        note = f"{between}; {best.name}" if between else best.name
        found.append(
            {
                "what": title,
                "value": f"{figure.value:,.2f}{_UNITS.get(name, '')}",
                "note": note + _against(comparison, best.name, marks.get((best.name, name))),
            }
        )
    found += _drift_card(comparison)
    found.append(
        {
            "what": "Questions",
            "value": f"{comparison.questions:,}",
            "note": f"answered in all of {len(comparison.runs)} runs"
            if len(comparison.runs) > 1
            else "1 run",
        }
    )
    return found


def _drift_card(comparison: RunComparison) -> list[dict[str, str]]:
    """How much faster plain decoding ran in the first other run that was compared with the reference's."""
    home = next(row for row in comparison.runs if row.label == comparison.reference_run)
    before = home.plain_tokens_per_s.value
    for row in comparison.runs:
        if row.drift is not None and row.drift.value is not None and before:
            note = f"{row.label} against {home.label}, tokens/s; {_DRIFT.get(row.drift_verdict, row.drift_verdict)}"
            share = row.drift.value / before
            return [{"what": "Plain decoding", "value": f"{share:+.1%}", "note": note}]
    return []


def _against(comparison: RunComparison, name: str, row: DifferenceRow | None) -> str:
    if name == comparison.reference:
        return "; the reference"
    if row is None:
        return ""
    return f"; {row.verdict} against {comparison.reference}"


def _difference_charts(comparison: RunComparison) -> list[dict[str, str]]:
    """One chart a figure: each method's difference to the reference, with its interval."""
    numbers = method_numbers(comparison)
    charts = []
    for name in comparison.kinds():
        rows = [
            (row.method, row.difference)
            for row in comparison.differences
            if row.group == OVERALL and row.figure == name and row.difference is not None
        ]
        known = {method: figure for method, figure in rows if figure.value is not None}
        if known:
            charts.append(
                {
                    "title": KINDS[name].title[:1].upper() + KINDS[name].title[1:],
                    "note": f"Difference to {comparison.reference} with its 95% interval; "
                    + ("more is better" if KINDS[name].more_is_better else "fewer is better"),
                    "svg": interval_chart(
                        f"diff-{name.replace('_', '-')}", _AXES[name], known, numbers, KINDS[name].digits
                    ),
                }
            )
    return charts


def interval_chart(
    name: str, label: str, rows: Mapping[str, Figure], numbers: Mapping[str, int], digits: int = 2
) -> str:
    """One line a method: a dot at its difference, a bar over its interval, and an upright stroke at 0.

    Args:
        name: prefix of the SVG's ids. label: of the value axis.
        rows: method -> difference, its value not None. numbers: method -> number of its colour.
        digits: decimal places of the values written.
    """

    def draw(axes: Axes) -> None:
        across = axes.get_yaxis_transform()
        for place, (method, figure) in enumerate(rows.items()):
            colour, value = method_colour(numbers[method]), figure.value or 0.0
            axes.axhline(place, color=RULE, linewidth=0.8, zorder=1)
            # A piece a row, so that it strikes through no name and no value.
            axes.plot([0.0, 0.0], [place - 0.17, place + 0.17], color=INK, linewidth=1.2, zorder=1.5)
            if figure.low is not None and figure.high is not None:
                ends = [figure.low, figure.high]
                axes.plot(ends, [place, place], color=colour, linewidth=2.8, solid_capstyle="butt", zorder=2)
            axes.scatter(
                [value],
                [place],
                s=52,
                color=colour,
                marker=method_marker(numbers[method]),
                edgecolors=PAPER,
                linewidths=1.0,
                zorder=3,
            )
            # Above the line, so that long names fit on a phone.
            above = place - 0.22
            look: dict[str, Any] = {"transform": across, "va": "bottom", "color": INK}
            axes.text(0.0, above, shortened(method, _NAME_LENGTH), **look)
            axes.text(1.0, above, f"{value:+,.{digits}f}", ha="right", fontweight="bold", **look)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.6, -0.8)
        axes.margins(x=0.08)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel(label)

    return render_chart(name, 0.6 + 0.55 * len(rows), draw)


def _task_charts(comparison: RunComparison, drafting: Sequence[MethodRow]) -> list[dict[str, Any]]:
    """Accepted length and speed-up of all drafting methods by task."""
    numbers = method_numbers(comparison)
    groups = list(comparison.groups)
    charts = []
    for name, title in (("accepted_length", "Accepted length"), ("speedup", "Speed-up")):
        series = {numbers[row.name]: [row.figures[group][name].value for group in groups] for row in drafting}
        if series:
            charts.append(
                {
                    "title": title,
                    "note": "The dashed line is plain decoding",
                    "svg": dot_chart(
                        f"task-{name.replace('_', '-')}",
                        _AXES[name],
                        groups,
                        series,
                        reference=1.0,
                    ),
                }
            )
    return charts
