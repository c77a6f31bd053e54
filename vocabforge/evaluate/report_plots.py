"""Charts of an evaluation: values in, SVG out (see ``plots.py`` for colours, markers and the frame).

Bars carry their names above them, not beside them, so that long names fit on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plots import (
    INK,
    MUTED,
    PAPER,
    RULE,
    known_points,
    label_axes,
    method_colour,
    method_dash,
    method_marker,
    render_chart,
    stack_bars,
)
from .report_text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAME_LENGTH = 24  # of a name above a bar
_ROW_IN = 0.6


@dataclass(frozen=True)
class Bar:
    """A bar, or a point with its interval.

    Attributes:
        index: place of the method, for its look.
        text: the value in words.
        low, high: interval; None where there is none.
        x: place on the other axis, where the chart has one.
    """

    index: int
    name: str
    text: str
    value: float | None
    low: float | None = None
    high: float | None = None
    x: float = 0.0


def _bare(axes: Axes) -> None:
    """No vertical axis: the rows carry their names."""
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(left=0)


def _names(axes: Axes, place: float, name: str, text: str) -> None:
    """The name at the left and the value at the right, above a row."""
    across = axes.get_yaxis_transform()
    axes.text(0.0, place, shortened(name, _NAME_LENGTH), transform=across, va="bottom", color=INK)
    axes.text(1.0, place, text, transform=across, va="bottom", ha="right", color=INK, fontweight="bold")


def bar_rows(name: str, label: str, bars: Sequence[Bar]) -> str:
    """One bar per method, its 95% interval as a whisker."""

    def draw(axes: Axes) -> None:
        for place, bar in enumerate(bars):
            value = bar.value or 0.0
            axes.barh(place, value, height=0.36, color=method_colour(bar.index))
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, value - bar.low)], [max(0.0, bar.high - value)]]
                axes.errorbar(value, place, xerr=reach, color=INK, capsize=3.5, linewidth=1.4)
            _names(axes, place - 0.25, bar.name, bar.text)
        axes.set_ylim(len(bars) - 0.66, -0.72)
        axes.margins(x=0.02)
        _bare(axes)
        axes.set_xlabel(label)

    return render_chart(name, 0.55 + _ROW_IN * len(bars), draw)


def stacked_rows(
    name: str,
    label: str,
    rows: Sequence[tuple[str, str]],
    parts: Sequence[tuple[int, Sequence[float]]],
) -> str:
    """One bar per method, divided into its parts; wide parts have their share written in.

    Args:
        rows: name and value in words.
        parts: number of the colour and the value in each row, left to right.
    """
    totals = [sum(values[row] for _, values in parts) for row in range(len(rows))]
    widest = max(totals, default=0.0) or 1.0

    def written(row: int, value: float) -> str:
        return f"{100 * value / totals[row]:.0f}%" if value and value >= 0.09 * widest else ""

    def draw(axes: Axes) -> None:
        stack_bars(axes, parts, written, height=0.4)
        for place, (shown, text) in enumerate(rows):
            _names(axes, place - 0.28, shown, text)
        axes.set_ylim(len(rows) - 0.66, -0.72)
        axes.set_xlim(0, widest * 1.01)
        _bare(axes)
        axes.set_xlabel(label)

    return render_chart(name, 0.55 + _ROW_IN * len(rows), draw)


def histogram_rows(name: str, label: str, series: Sequence[tuple[Bar, Mapping[str, int]]]) -> str:
    """Share of verification steps by accepted length, one small histogram per method, one below the other."""
    longest = max((int(length) for _, counts in series for length in counts), default=1)
    tallest = max(
        (max(counts.values(), default=0) / (sum(counts.values()) or 1) for _, counts in series), default=0
    )
    height = 0.5

    def draw(axes: Axes) -> None:
        for row, (bar, counts) in enumerate(series):
            ground, total = float(len(series) - 1 - row), sum(counts.values()) or 1
            lengths = range(1, longest + 1)
            shares = [counts.get(str(length), 0) / total for length in lengths]
            tops = [height * share / (tallest or 1) for share in shares]
            axes.bar(lengths, tops, bottom=ground, width=0.82, color=method_colour(bar.index))
            axes.axhline(ground, color=RULE, linewidth=1.0)
            _names(axes, ground + height + 0.19, bar.name, bar.text)
            for length, share, top in zip(lengths, shares, tops):
                if longest <= 10 and share:
                    text = f"{100 * share:.0f}" if share >= 0.005 else "<1"
                    axes.text(length, ground + top + 0.015, text, ha="center", va="bottom", color=MUTED)
        axes.set_ylim(-0.02, len(series) - 1 + height + 0.4)
        axes.set_xlim(0.4, longest + 0.6)
        step = 1 + longest // 13
        axes.set_xticks(range(1, longest + 1, step))
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_xlabel(label)

    return render_chart(name, 0.6 + 1.12 * len(series), draw)


@dataclass(frozen=True)
class Trace:
    """A method's values over a row of whole numbers; None where there is no value."""

    index: int
    x: Sequence[int]
    y: Sequence[float | None]


def trace_lines(
    name: str,
    labels: tuple[str, str],
    traces: Sequence[Trace],
    *,
    whole: bool = False,
    level: float | None = None,
) -> str:
    """One line per method, told apart by colour, marker and dashes.

    Args:
        labels: of both axes.
        whole: values are shares in percent: the axis goes from 0 to 100.
        level: value to mark by a horizontal line.
    """

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        if level is not None:
            axes.axhline(level, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)))
        for trace in traces:
            axes.plot(
                *known_points(trace.x, trace.y),
                color=method_colour(trace.index),
                marker=method_marker(trace.index),
                linestyle=method_dash(trace.index),
                linewidth=2,
                markersize=7,
                markeredgecolor=PAPER,
            )
        if whole:
            axes.set_ylim(0, 102)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
        axes.margins(x=0.06)
        label_axes(axes, labels)

    return render_chart(name, 3.1, draw)


def size_points(
    name: str,
    label: str,
    points: Sequence[Bar],
    *,
    level: float | None = None,
    lines: Sequence[Sequence[int]] = (),
) -> str:
    """A figure against the size of the draft vocabulary, on a logarithmic axis.

    Args:
        points: ``x`` is the size, at least 1.
        level: value of plain decoding, a dashed line.
        lines: places in ``points`` that a thin line joins: one drafter with several vocabularies.
    """
    sizes = [point.x for point in points]
    first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        if level is not None:
            axes.axhline(level, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        beside = _side_by_side(points)
        for line in lines:
            joined = sorted((beside[at], points[at].value) for at in line if points[at].value is not None)
            axes.plot(*zip(*joined, strict=True), color=MUTED, linewidth=1.0, zorder=1.5)
        for point, x in zip(points, beside, strict=True):
            if point.value is None:
                continue
            low = point.value if point.low is None else min(point.low, point.value)
            high = point.value if point.high is None else max(point.high, point.value)
            axes.errorbar(
                x,
                point.value,
                yerr=[[point.value - low], [high - point.value]],
                color=method_colour(point.index),
                marker=method_marker(point.index),
                markersize=9,
                markeredgecolor=PAPER,
                capsize=3.5,
                linewidth=1.6,
            )
        ticks = [1 << bits for bits in range(first, last + 1, 1 + (last - first) // 6)]
        axes.set_xticks(ticks, [_size(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(min(sizes) / 1.6, max(sizes) * 1.6)
        axes.margins(y=0.12)
        label_axes(axes, ("tokens scored in a draft step", label))

    return render_chart(name, 3.1, draw)


def _side_by_side(points: Sequence[Bar]) -> list[float]:
    """Where the points stand: those of one size a little apart, so that their whiskers can be told apart."""
    alike: dict[float, list[int]] = {}
    for place, point in enumerate(points):
        alike.setdefault(point.x, []).append(place)
    at = [point.x for point in points]
    for places in alike.values():
        for rank, place in enumerate(places):
            at[place] *= 1.07 ** (rank - (len(places) - 1) / 2)
    return at


def _size(tokens: int) -> str:
    return f"{tokens >> 10}k" if tokens >= 1024 else str(tokens)
