"""Charts of a training run: curves over steps, and shares as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plots import (
    INK,
    MUTED,
    PAPER,
    known_points,
    label_axes,
    method_colour,
    render_chart,
    stack_bars,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABEL_GAP = 0.055  # least distance of labels at the curves' ends, as a share of the axis


@dataclass(frozen=True)
class Curve:
    """One curve over steps.

    Attributes:
        colour: number of the page's colour.
        strength: 1 is opaque; curves of one family are told apart by it.
        end: text at the right end, in place of a legend.
    """

    x: Sequence[float]
    y: Sequence[float | None]
    colour: int
    strength: float = 1.0
    dashed: bool = False
    dots: bool = False
    width: float = 1.9
    end: str = ""


def progress_chart(
    name: str,
    label: str,
    curves: Sequence[Curve],
    *,
    marks: Sequence[int] = (),
    bottom: float | None = None,
    top: float | None = None,
    narrow: bool = False,
) -> str:
    """Curves over training steps.

    Args:
        name: prefix of the SVG's ids, different for each chart of a page.
        label: of the value axis.
        marks: steps to mark by an upright line (where the run was resumed).
        bottom, top: ends of the value axis; None leaves them to the values.
        narrow: for a third of the page's width instead of half.
    """

    def draw(axes: Axes) -> None:
        for curve in curves:
            steps, values = known_points(curve.x, curve.y)
            axes.plot(
                steps,
                values,
                color=method_colour(curve.colour),
                alpha=curve.strength,
                linewidth=curve.width,
                linestyle=(0, (4, 2)) if curve.dashed else "-",
                marker="o" if curve.dots and len(steps) <= 60 else None,
                markersize=4.5,
                markeredgecolor=PAPER,
                markeredgewidth=0.7,
                solid_capstyle="round",
            )
        axes.set_ylim(bottom, top)
        for step in marks:
            axes.axvline(step, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        axes.margins(x=0.02)
        axes.xaxis.set_major_formatter(lambda value, _: _steps(value))
        axes.locator_params(axis="x", integer=True, nbins=4 if narrow else 6)
        label_axes(axes, ("step", label))
        _label_ends(axes, curves)

    return render_chart(name, *((2.5, draw, 3.3) if narrow else (2.9, draw)))


def _label_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write each curve's name at its right end, moved apart where they would overlap."""
    ends = []
    for curve in curves:
        steps, values = known_points(curve.x, curve.y)
        if curve.end and steps:
            ends.append((values[-1], steps[-1], curve))
    if not ends:
        return
    low, high = axes.get_ylim()
    ends.sort(key=lambda item: item[0])
    places = spread([(y - low) / (high - low or 1.0) for y, _, _ in ends], _LABEL_GAP)
    for place, (_, x, curve) in zip(places, ends):
        axes.annotate(
            curve.end,
            (x, low + place * (high - low)),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=method_colour(curve.colour),
            alpha=max(curve.strength, 0.75),
            annotation_clip=False,
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places moved apart to at least ``gap``, as little as possible: whole groups move together."""
    groups: list[list[float]] = []  # each a list of wanted places, laid out evenly around its middle
    for place in places:
        groups.append([place])
        while len(groups) > 1 and _first(groups[-1], gap) < _last(groups[-2], gap) + gap:
            joined = groups.pop()
            groups[-1] += joined
    return [_first(group, gap) + number * gap for group in groups for number in range(len(group))]


def _first(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _last(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2


def share_bars(
    name: str, label: str, rows: Sequence[str], parts: Sequence[tuple[int, Sequence[float]]]
) -> str:
    """One bar a row, divided into shares of 1; shares of 6% and more are written into it.

    Args:
        parts: colour number and the share of each row, left to right.
    """

    def draw(axes: Axes) -> None:
        stack_bars(axes, parts, lambda row, value: f"{100 * value:.0f}" if value >= 0.06 else "", height=0.66)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
        axes.set_xlabel(label)
        axes.yaxis.label.set_color(INK)

    return render_chart(name, 0.9 + 0.3 * len(rows), draw)


def _steps(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"
