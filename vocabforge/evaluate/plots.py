"""Charts as SVG text that takes its colours from the page around it, so light and dark both work."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Placeholder colours; `_themed` replaces each by a CSS variable of the page.
INK, MUTED, RULE, PAPER = "#000001", "#000002", "#000003", "#000004"
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"}
METHOD_COLOURS = 7
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
MARKER_NAMES = ("dots", "squares", "diamonds", "triangles", "triangles down", "pluses", "crosses")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
# A chart is as wide as a panel on a phone of 360 pixels, so that its text is shown in the size that it has here.
WIDTH_IN = 4.3
TEXT_SIZE = 12


def method_colour(index: int) -> str:
    """Placeholder colour of the method at this place (0 is the baseline)."""
    return f"#0000a{index % METHOD_COLOURS}"


def method_marker(index: int) -> str:
    """Marker of a method: another one each time that the colours begin again."""
    return _MARKERS[index // METHOD_COLOURS % len(_MARKERS)]


def method_dash(index: int) -> Any:
    """Line style of a method: another one each time that the colours begin again."""
    return _DASHES[index // METHOD_COLOURS % len(_DASHES)]


def known_points(x: Sequence[float], y: Sequence[float | None]) -> tuple[Sequence[float], Sequence[float]]:
    """The places and values of a curve where it has one."""
    known = [(place, value) for place, value in zip(x, y) if value is not None]
    return [place for place, _ in known], [value for _, value in known]


def label_axes(axes: Axes, labels: tuple[str, str]) -> None:
    """Texts of both axes, and level lines behind the curves."""
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)


def dot_chart(
    name: str,
    label: str,
    rows: Sequence[str],
    series: Mapping[int, Sequence[float | None]],
    *,
    reference: float | None = None,
    from_zero: bool = False,
    names: Mapping[int, str] | None = None,
) -> str:
    """One line per row (category), one dot per method.

    Args:
        name: prefix of the SVG's ids, different for each chart of a page.
        label: text of the value axis.
        rows: row names, top to bottom; the first is set apart by weight.
        series: method index -> value per row, None where there is none.
        reference: value to mark by an upright line.
        from_zero: start the value axis at 0.
        names: method index -> name, to explain the dots inside the chart (for a file that stands alone).
    """

    def draw(axes: Axes) -> None:
        _dots(axes, len(rows), series, names or {})
        if names:
            axes.legend(
                frameon=False,
                labelcolor=INK,
                fontsize=9,
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
                ncols=2,
            )
        if reference is not None:
            axes.axvline(reference, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.get_yticklabels()[0].set_fontweight("bold")
        axes.set_ylim(len(rows) - 0.4, -0.6)
        if from_zero:
            axes.set_xlim(left=0)
        axes.set_xlabel(label)

    return render_chart(name, 0.85 + 0.3 * len(rows), draw)


def _dots(
    axes: Axes, rows: int, series: Mapping[int, Sequence[float | None]], names: Mapping[int, str]
) -> None:
    """A line a row, the stretch between its lowest and highest value, and the methods' dots on it."""
    places = range(rows)
    for place in places:
        axes.axhline(place, color=RULE, linewidth=0.8, zorder=1)
        values = [value for line in series.values() if (value := line[place]) is not None]
        if len(values) > 1:
            axes.plot([min(values), max(values)], [place, place], color=MUTED, linewidth=1.6, zorder=2)
    for index, line in series.items():
        heights, known = known_points(places, line)
        axes.scatter(
            known,
            heights,
            s=46,
            color=method_colour(index),
            marker=method_marker(index),
            edgecolors=PAPER,
            linewidths=1.0,
            zorder=3,
            label=names.get(index),
        )


@dataclass(frozen=True)
class Line:
    """One curve: places and values (None: no value there), its colour by number, dashed or not, its name."""

    x: Sequence[float]
    y: Sequence[float | None]
    colour: int
    label: str
    dashed: bool = False
    marked: bool = False


def line_chart(
    name: str,
    labels: tuple[str, str],
    lines: Sequence[Line],
    *,
    log_y: bool = False,
    ceiling: float | None = None,
    legend: bool = False,
) -> str:
    """Curves over sizes, on a logarithmic axis of powers of two.

    Args:
        labels: of the size axis and of the value axis.
        log_y: values on a logarithmic axis too; else from 0.
        ceiling: end of the value axis.
        legend: name the curves inside the chart (for a file that stands alone).
    """

    # A logarithmic axis over nothing above 0 cannot be drawn.
    log_y = log_y and any(y is not None and y > 0 for line in lines for y in line.y)

    def draw(axes: Axes) -> None:
        for line in lines:
            shown = [None if y is not None and y <= 0 and log_y else y for y in line.y]
            places, values = known_points(line.x, shown)
            axes.plot(
                places,
                values,
                color=method_colour(line.colour),
                linewidth=1.8,
                linestyle=(0, (4, 2)) if line.dashed else "-",
                marker=method_marker(line.colour) if line.marked else None,
                markersize=7,
                markevery=max(1, len(places) // 8),
                markeredgecolor=PAPER,
                label=line.label,
            )
        axes.set_xscale("log", base=2)
        largest = max(max(line.x) for line in lines)
        smallest = min(min(line.x) for line in lines)
        ticks = [1 << bits for bits in range(0, 40, 2) if smallest <= 1 << bits <= largest]
        axes.set_xticks(ticks, [f"{tick:,}" if tick < 1024 else f"{tick >> 10}k" for tick in ticks])
        axes.minorticks_off()
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.minorticks_off()
        else:
            axes.set_ylim(0, ceiling)
        label_axes(axes, labels)
        if legend:
            axes.legend(frameon=False, labelcolor=INK, fontsize=9)

    return render_chart(name, 3.1, draw)


def render_chart(name: str, height: float, draw: Callable[[Any], None], width: float = WIDTH_IN) -> str:
    """Draw on axes of the common look (inches) and return themed SVG text."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": TEXT_SIZE if width >= WIDTH_IN else TEXT_SIZE * width / WIDTH_IN + 0.8,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": RULE,
        "xtick.color": RULE,
        "ytick.color": RULE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": INK,
        "ytick.major.size": 0,
        "text.parse_math": False,  # names are the user's, not formulas
    }
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        canvas = FigureCanvasSVG(figure)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        draw(axes)
        buffer = io.StringIO()
        # Not savefig, which draws everything twice.
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _themed(buffer.getvalue(), name)


def _themed(svg: str, name: str) -> str:
    """Inline SVG: no prologue, no metadata, ids of its own, colours as CSS variables."""
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


def stack_bars(
    axes: Axes,
    parts: Sequence[tuple[int, Sequence[float]]],
    written: Callable[[int, float], str],
    *,
    height: float,
) -> None:
    """One bar a row, divided into its parts.

    Args:
        parts: number of the colour and the value in each row, left to right.
        written: what stands in the part of a row with a value; may be empty.
        height: of a bar, in rows.
    """
    left = [0.0] * max((len(values) for _, values in parts), default=0)
    for colour, values in parts:
        places = range(len(values))
        look: dict[str, Any] = {"color": method_colour(colour), "edgecolor": PAPER, "linewidth": 0.8}
        axes.barh(places, values, left=left, height=height, **look)
        for row, value in enumerate(values):
            if text := written(row, value):
                middle = left[row] + value / 2
                axes.text(middle, row, text, ha="center", va="center", color=PAPER, fontweight="bold")
        left = [a + b for a, b in zip(left, values)]
