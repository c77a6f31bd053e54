"""Render the charts of pages as SVG text, and plots as PNG files.

Names are written above bars instead of next to them, so that long names fit on a phone.
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

# Colours of the methods; the first (grey) is the baseline's.
COLOURS = ("#7b8794", "#2563eb", "#c2570c", "#0d8a5f", "#8b3fc7", "#c81e4a", "#0b7d95")
INK, MUTED, RULE, PAPER = "#16202c", "#586474", "#dfe4ea", "#ffffff"
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_STYLE = {
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "text.parse_math": False,  # user-defined names are not formulas
}
# The width of a panel on a 360-pixel phone, so that text is displayed at its nominal size.
WIDTH_IN = 4.3
TEXT_SIZE = 12
_LONGEST_NAME = 24
_ROW_IN = 0.6


def method_colour(index: int) -> str:
    """Return the colour of a method (0 is the baseline)."""
    return COLOURS[index % len(COLOURS)]


def shortened(text: str) -> str:
    """Shorten a long text in the middle, because the ends distinguish variants."""
    if len(text) <= _LONGEST_NAME:
        return text
    end = (_LONGEST_NAME - 1) // 2
    return f"{text[: _LONGEST_NAME - 1 - end]}…{text[-end:]}"


@dataclass(frozen=True)
class Bar:
    """A method's value and interval; ``text`` is the formatted value."""

    name: str
    text: str
    parts: Sequence[tuple[int, float]]  # (colour number, length) from left to right; their sum is the value
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Trace:
    """A curve."""

    index: int  # number of the colour, marker and line style
    x: Sequence[float]
    y: Sequence[float | None]  # None if missing
    label: str = ""
    dashed: bool = False

    def known(self) -> tuple[list[float], list[float]]:
        """Return the coordinates of the points that have a value."""
        points = [(x, y) for x, y in zip(self.x, self.y) if y is not None]
        return [x for x, _ in points], [y for _, y in points]


@dataclass(frozen=True)
class Panel:
    """A chart of curves."""

    title: str
    labels: tuple[str, str]
    traces: Sequence[Trace]
    log_x: bool = False  # use a logarithmic x axis with powers of two
    bottom: float | None = None  # ends of the y axis; None fits the curves
    top: float | None = None
    level: float | None = None  # value of a horizontal line
    marks: Sequence[tuple[float, str]] = ()  # of vertical lines, with their names in the legend of a PNG plot

    def known(self) -> list[Trace]:
        """Return the curves that have a value."""
        return [trace for trace in self.traces if trace.known()[0]]


def line_svg(name: str, panel: Panel) -> str:
    """Draw a chart of curves as SVG; ``name`` is the prefix of its ids, unique on the page."""
    return render_chart(name, 3.0, lambda axes: _draw_panel(axes, panel))


def render_png(title: str, panels: Sequence[Panel]) -> bytes:
    """Draw the panels that have a value in two columns, and return a PNG file."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [panel for panel in panels if panel.known()]
    columns = min(2, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    with rc_context(_STYLE):
        figure = Figure(figsize=(7.0 * columns, 3.8 * rows), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        figure.suptitle(title)
        for place, panel in enumerate(shown, start=1):
            axes = figure.add_subplot(rows, columns, place)
            _draw_panel(axes, panel)
            axes.set_title(panel.title)
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize="small")
        buffer = io.BytesIO()
        canvas.print_png(buffer)
    return buffer.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    dotted: dict[str, Any] = {"color": MUTED, "linewidth": 1.0, "linestyle": (0, (1, 2)), "zorder": 1}
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.level is not None:
        axes.axhline(panel.level, **dotted)
    for trace in panel.known():
        _draw_trace(axes, trace)
    for place, name in panel.marks:
        axes.axvline(place, label=name, **dotted)
    axes.margins(x=0.06, y=0.1)
    axes.set_ylim(panel.bottom, panel.top)
    _scale_x(axes, [x for trace in panel.traces for x in trace.x], log_x=panel.log_x)
    axes.set_xlabel(panel.labels[0])
    axes.set_ylabel(panel.labels[1])
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def _scale_x(axes: Axes, values: Sequence[float], *, log_x: bool) -> None:
    """Label the x axis with whole numbers, or with powers of two on a logarithmic axis."""
    if not log_x:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        return
    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    ticks = [1 << bits for bits in range(first, last + 1, 1 + (last - first) // 6)]
    axes.set_xticks(ticks, [f"{tick >> 10}k" if tick >= 1024 else str(tick) for tick in ticks])
    axes.set_xlim(min(values) / 1.3, max(values) * 1.3)
    axes.xaxis.minorticks_off()


def _draw_trace(axes: Axes, trace: Trace) -> None:
    x, y = trace.known()
    again = trace.index // len(COLOURS)  # change marker and line style when colours repeat
    axes.plot(
        x,
        y,
        color=method_colour(trace.index),
        linewidth=1.8,
        linestyle=(0, (4, 2)) if trace.dashed else _DASHES[again % len(_DASHES)],
        marker=MARKERS[again % len(MARKERS)] if len(x) <= 30 else None,
        markersize=7,
        markeredgecolor=PAPER,
        label=trace.label,
    )


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def bar_rows(name: str, label: str, bars: Sequence[Bar]) -> str:
    """Draw one bar per method with its 95% interval; of several parts, wide ones show their share."""
    totals = [sum(length for _, length in bar.parts) for bar in bars]
    widest = max(totals, default=0.0) or 1.0

    def draw(axes: Axes) -> None:
        for place, (bar, total) in enumerate(zip(bars, totals)):
            left = 0.0
            for colour, length in bar.parts:
                look: dict[str, Any] = {"color": method_colour(colour), "edgecolor": PAPER, "linewidth": 0.8}
                axes.barh(place, length, left=left, height=0.4, **look)
                if len(bar.parts) > 1 and length >= 0.09 * widest:
                    share, middle = f"{100 * length / total:.0f}%", left + length / 2
                    axes.text(middle, place, share, ha="center", va="center", color=PAPER, fontweight="bold")
                left += length
            if bar.low is not None and bar.high is not None:
                reach = [[max(0.0, total - bar.low)], [max(0.0, bar.high - total)]]
                axes.errorbar(total, place, xerr=reach, color=INK, capsize=3.5, linewidth=1.4)
            _names(axes, place - 0.28, bar.name, bar.text)
        axes.set_ylim(len(bars) - 0.66, -0.78)
        axes.margins(x=0.02)
        axes.locator_params(axis="x", nbins=5)
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)

    return render_chart(name, 0.55 + _ROW_IN * len(bars), draw)


def _names(axes: Axes, place: float, name: str, text: str) -> None:
    across = axes.get_yaxis_transform()
    axes.text(0.0, place, shortened(name), transform=across, va="bottom", color=INK)
    axes.text(1.0, place, text, transform=across, va="bottom", ha="right", color=INK, fontweight="bold")


def render_chart(name: str, height: float, draw: Callable[[Any], None]) -> str:
    """Draw on axes in the common style, with a height in inches, and return inline SVG text."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {**_STYLE, "svg.fonttype": "none", "svg.hashsalt": name, "font.size": TEXT_SIZE}
    with rc_context(style):
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        buffer = io.StringIO()
        # savefig would draw everything twice.
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Return inline SVG: no prologue, metadata or size, and prefixed ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'(<svg\b[^>]*?)\s(?:width|height)="[^"]*"([^>]*?)\s(?:width|height)="[^"]*"', r"\1\2", svg)
    return svg.strip()
