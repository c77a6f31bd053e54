"""Render charts as SVG text.

Colours are CSS variables of the page, so charts follow its light or dark mode. Names are written above bars
instead of next to them, so that long names fit on a phone.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Light-mode colours of the pages; `m0` to `m6` are the methods', `m0` (grey) the baseline's.
LIGHT = {
    "--ink": "#16202c",
    "--muted": "#586474",
    "--rule": "#dfe4ea",
    "--paper": "#ffffff",
    "--m0": "#7b8794",
    "--m1": "#2563eb",
    "--m2": "#c2570c",
    "--m3": "#0d8a5f",
    "--m4": "#8b3fc7",
    "--m5": "#c81e4a",
    "--m6": "#0b7d95",
}
# Placeholder colours that `_themed` replaces by CSS variables of the page.
INK, MUTED, RULE, PAPER = "#000001", "#000002", "#000003", "#000004"
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"}
METHOD_COLOURS = 7
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
# The width of a panel on a 360-pixel phone, so that text is displayed at its nominal size.
WIDTH_IN = 4.3
TEXT_SIZE = 12
_LONGEST_NAME = 24
_ROW_IN = 0.6


def method_colour(index: int) -> str:
    """Return the placeholder colour of a method (0 is the baseline)."""
    return f"#0000a{index % METHOD_COLOURS}"


def shortened(text: str, length: int = _LONGEST_NAME) -> str:
    """Shorten a long text in the middle, because the ends distinguish variants."""
    if len(text) <= length:
        return text
    end = (length - 1) // 2
    return f"{text[: length - 1 - end]}…{text[-end:]}"


@dataclass(frozen=True)
class Bar:
    """A method's value and interval; ``text`` is the formatted value, ``index`` its colour and marker."""

    index: int
    name: str
    text: str
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Trace:
    """A curve.

    Attributes:
        index: number of the colour, marker and line style.
        y: values; None if missing.
        label: name in the legend.
    """

    index: int
    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    dashed: bool = False
    marked: bool = True

    def known(self) -> tuple[list[float], list[float]]:
        """Return the coordinates of the points that have a value."""
        points = [(x, y) for x, y in zip(self.x, self.y) if y is not None]
        return [x for x, _ in points], [y for _, y in points]


def trace_lines(
    name: str,
    labels: tuple[str, str],
    traces: Sequence[Trace],
    *,
    log_x: bool = False,
    bottom: float | None = None,
    top: float | None = None,
    marks: Sequence[float] = (),
    points: Sequence[tuple[float, float, str]] = (),
    level: float | None = None,
) -> str:
    """Draw curves over steps, positions or sizes.

    Args:
        name: prefix of the SVG's ids, unique on the page.
        log_x: use a logarithmic x axis with powers of two.
        marks: positions of vertical lines.
        points: highlighted points (x, y) with matplotlib markers; the first is drawn on top.
        level: value of a horizontal line.
    """

    def draw(axes: Axes) -> None:
        if log_x:
            axes.set_xscale("log", base=2)
        for place in marks:
            axes.axvline(place, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        if level is not None:
            axes.axhline(level, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        for trace in traces:
            _draw_trace(axes, trace)
        for x, y, marker in reversed(points):
            axes.axvline(x, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
            axes.plot(x, y, color=INK, marker=marker, markersize=9, markeredgecolor=PAPER, zorder=3)
        axes.margins(x=0.06 if max((len(trace.x) for trace in traces), default=0) < 20 else 0.02, y=0.1)
        axes.set_ylim(bottom, top)
        if log_x:
            sizes = [x for trace in traces for x in trace.x]
            first, last = math.floor(math.log2(min(sizes))), math.ceil(math.log2(max(sizes)))
            ticks = [1 << bits for bits in range(first, last + 1, 1 + (last - first) // 6)]
            axes.set_xticks(ticks, [f"{tick >> 10}k" if tick >= 1024 else str(tick) for tick in ticks])
            axes.set_xlim(min(sizes) / 1.3, max(sizes) * 1.3)
            axes.xaxis.minorticks_off()
        else:
            from matplotlib.ticker import MaxNLocator

            axes.xaxis.set_major_formatter(lambda value, _: _short(value))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.grid(axis="y", color=RULE, linewidth=0.8)
        axes.set_axisbelow(True)

    return render_chart(name, 3.0, draw)


def _draw_trace(axes: Axes, trace: Trace) -> None:
    x, y = trace.known()
    again = trace.index // METHOD_COLOURS  # change marker and line style when colours repeat
    axes.plot(
        x,
        y,
        color=method_colour(trace.index),
        linewidth=1.8,
        linestyle=(0, (4, 2)) if trace.dashed else _DASHES[again % len(_DASHES)],
        marker=MARKERS[again % len(MARKERS)] if trace.marked and len(x) <= 60 else None,
        markersize=7,
        markeredgecolor=PAPER,
        label=trace.label,
    )


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def bar_rows(name: str, label: str, bars: Sequence[Bar]) -> str:
    """Draw one bar per method with its 95% interval."""

    def draw(axes: Axes) -> None:
        for place, bar in enumerate(bars):
            value = bar.value or 0.0
            axes.barh(place, value, height=0.36, color=method_colour(bar.index))
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, value - bar.low)], [max(0.0, bar.high - value)]]
                axes.errorbar(value, place, xerr=reach, color=INK, capsize=3.5, linewidth=1.4)
            _names(axes, place - 0.25, bar.name, bar.text)
        axes.set_ylim(len(bars) - 0.66, -0.78)
        axes.margins(x=0.02)
        axes.locator_params(axis="x", nbins=5)
        _without_rows(axes, label)

    return render_chart(name, 0.55 + _ROW_IN * len(bars), draw)


def _names(axes: Axes, place: float, name: str, text: str) -> None:
    """Write the name at the left and the value at the right above a row."""
    across = axes.get_yaxis_transform()
    axes.text(0.0, place, shortened(name), transform=across, va="bottom", color=INK)
    axes.text(1.0, place, text, transform=across, va="bottom", ha="right", color=INK, fontweight="bold")


def _without_rows(axes: Axes, label: str) -> None:
    """Remove the vertical axis; rows are labelled individually."""
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(left=0)
    axes.set_xlabel(label)


def stacked_rows(
    name: str,
    label: str,
    rows: Sequence[tuple[str, str]],
    parts: Sequence[tuple[int, Sequence[float]]],
) -> str:
    """Draw one bar per row (name, formatted value) of parts (colour, values); wide parts show their share."""
    totals = [sum(values[row] for _, values in parts) for row in range(len(rows))]
    widest = max(totals, default=0.0) or 1.0

    def draw(axes: Axes) -> None:
        left = [0.0] * len(rows)
        for colour, values in parts:
            look: dict[str, Any] = {"color": method_colour(colour), "edgecolor": PAPER, "linewidth": 0.8}
            axes.barh(range(len(rows)), values, left=left, height=0.4, **look)
            for row, value in enumerate(values):
                if value >= 0.09 * widest and value > 0:
                    text = f"{100 * value / totals[row]:.0f}%"
                    middle = left[row] + value / 2
                    axes.text(middle, row, text, ha="center", va="center", color=PAPER, fontweight="bold")
            left = [a + b for a, b in zip(left, values)]
        for place, (shown, text) in enumerate(rows):
            _names(axes, place - 0.28, shown, text)
        axes.set_ylim(len(rows) - 0.66, -0.78)
        axes.set_xlim(0, widest * 1.01)
        _without_rows(axes, label)

    return render_chart(name, 0.55 + _ROW_IN * len(rows), draw)


def render_chart(name: str, height: float, draw: Callable[[Any], None]) -> str:
    """Draw on axes in the common style, with a height in inches, and return themed SVG text."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": TEXT_SIZE,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": RULE,
        "xtick.color": RULE,
        "ytick.color": RULE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": INK,
        "ytick.major.size": 0,
        "text.parse_math": False,  # user-defined names are not formulas
    }
    with rc_context(style):
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        draw(axes)
        buffer = io.StringIO()
        # savefig would draw everything twice.
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _themed(buffer.getvalue(), name)


def _themed(svg: str, name: str) -> str:
    """Return inline SVG: no prologue or metadata, prefixed ids, colours as CSS variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'(<svg\b[^>]*?)\s(?:width|height)="[^"]*"([^>]*?)\s(?:width|height)="[^"]*"', r"\1\2", svg)
    variables = {method_colour(index): f"--m{index}" for index in range(METHOD_COLOURS)}
    for colour, variable in (_VARIABLES | variables).items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()
