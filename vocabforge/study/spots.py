"""A chart of points of several series, as SVG (see ``evaluate/plots.py`` for colours and the frame)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..evaluate.plots import INK, MUTED, PAPER, RULE, method_colour, method_dash, method_marker, render_chart
from ..tune.charts import WIDE_IN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEGEND_SIZE = 9


@dataclass(frozen=True)
class Series:
    """Points of one method name; ``spots`` are x, y and deviation of y (0: none)."""

    index: int
    label: str
    spots: Sequence[tuple[float, float, float]]


def spot_chart(
    name: str,
    series: Sequence[Series],
    labels: tuple[str, str],
    marks: tuple[float | None, float | None] = (None, None),
    *,
    sizes: bool = False,
    width: float = WIDE_IN,
    legend: bool = False,
) -> str:
    """Points of several series, those of one series joined.

    Args:
        labels: of both axes.
        marks: dashed lines at an x and a y.
        sizes: x is a number of tokens, on a logarithmic axis.
        legend: name the series inside the chart (for a file that stands alone).
    """
    wide = width >= WIDE_IN

    def draw(axes: Axes) -> None:
        for at, line in zip(marks, (axes.axvline, axes.axhline)):
            if at is not None:
                line(at, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        for one in series:
            axes.errorbar(
                [x for x, _, _ in one.spots],
                [y for _, y, _ in one.spots],
                yerr=[deviation for _, _, deviation in one.spots],
                color=method_colour(one.index),
                marker=method_marker(one.index),
                linestyle=method_dash(one.index),
                linewidth=1.4,
                elinewidth=1.2,
                markersize=8 if wide else 6.5,
                markeredgecolor=PAPER,
                capsize=2.5,
                label=one.label,
            )
        if sizes:
            _size_axis(axes, [x for one in series for x, _, _ in one.spots], every=1 if wide else 2)
        axes.margins(x=0.05, y=0.08)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.grid(axis="y", color=RULE, linewidth=0.8)
        axes.set_axisbelow(True)
        if legend:
            axes.legend(
                frameon=False,
                labelcolor=INK,
                fontsize=_LEGEND_SIZE,
                ncols=4,
                loc="lower center",
                bbox_to_anchor=(0.5, 1.0),
            )

    return render_chart(name, 4.6 if wide else 3.6, draw, width)


def _size_axis(axes: Axes, sizes: Sequence[float], *, every: int) -> None:
    """A logarithmic axis with powers of two as ticks."""
    axes.set_xscale("log", base=2)
    first, last = min(sizes), max(sizes)
    ticks = [1 << bits for bits in range(40) if first / 1.2 <= 1 << bits <= last * 1.2][::every]
    axes.set_xticks(ticks, [f"{tick >> 10}k" if tick >= 1024 else str(tick) for tick in ticks])
    axes.minorticks_off()
