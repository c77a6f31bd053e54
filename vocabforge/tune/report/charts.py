"""Charts of a tuning run: values in, themed SVG out (see ``evaluate/reports/plots.py`` for colours and the frame)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...evaluate.reports.plots import INK, MUTED, PAPER, RULE, method_colour, method_marker, render_chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE_IN = 9.0
_STEPS = (1, 2, 2.5, 5)


@dataclass(frozen=True)
class ChartPoint:
    """A way of decoding in the plane of cycle time and accepted length.

    Attributes:
        index: of its draft head, for colour and marker.
        ms: of a cycle. accepted: tokens that it commits.
        chain: drawn hollow.
        best: drawn large, with its name.
    """

    index: int
    name: str
    ms: float
    accepted: float
    chain: bool = False
    best: bool = False


def pareto_chart(
    name: str, places: Sequence[ChartPoint], plain: ChartPoint, *, batch: int = 1, width: float = WIDE_IN
) -> str:
    """Accepted length over cycle time; straight lines through the origin are equal tokens a second.

    The staircase joins the ways that none is both quicker and better than.
    """
    rates = contour_rates([1e3 * batch * one.accepted / one.ms for one in (*places, plain)])

    def draw(axes: Axes) -> None:
        right = 1.08 * max(one.ms for one in (*places, plain))
        top = 1.12 * max(one.accepted for one in (*places, plain))
        last = 2 * right
        for rate in rates:
            slope = rate / 1e3 / batch
            end = min(right, top / slope)
            axes.plot([0, end], [0, slope * end], color=RULE, linewidth=1.0, zorder=1)
            at_right = end == right
            if not at_right and end > last - (0.07 if width >= WIDE_IN else 0.13) * right:
                continue  # its name would stand on that of the line before
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
        front = frontier(places)
        axes.step(
            [one.ms for one in front],
            [one.accepted for one in front],
            where="post",
            color=MUTED,
            linewidth=1.2,
        )
        for one in [*places, plain]:
            axes.plot(
                one.ms,
                one.accepted,
                linestyle="none",
                marker="*" if one.best else method_marker(one.index),
                markersize=15 if one.best else 6.5,
                color=method_colour(one.index),
                markerfacecolor=PAPER if one.chain and not one.best else method_colour(one.index),
                markeredgecolor=INK if one.best else method_colour(one.index),
                markeredgewidth=1.0,
                zorder=4 if one.best else 3,
            )
        axes.set_xlim(0, right)
        axes.set_ylim(0, top)
        axes.set_xlabel("cycle, ms")
        axes.set_ylabel("tokens committed a cycle")

    return render_chart(name, 4.6 if width >= WIDE_IN else 3.6, draw, width)


def frontier(places: Sequence[ChartPoint]) -> list[ChartPoint]:
    """Those that no other is both quicker and better than, by time."""
    found: list[ChartPoint] = []
    for one in sorted(places, key=lambda place: (place.ms, -place.accepted)):
        if not found or one.accepted > found[-1].accepted:
            found.append(one)
    return found


def contour_rates(rates: Sequence[float]) -> list[float]:
    """Round numbers from the lowest to above the highest rate, about five of them."""
    highest, lowest = max(rates), min(rates)
    wanted = max(highest - lowest, highest / 10) / 4
    power = 10.0 ** len(str(int(wanted))) / 10 if wanted >= 1 else 0.1
    step = min((size * power for size in (*_STEPS, 10)), key=lambda size: abs(size - wanted))
    first = int(lowest / step)
    return [step * number for number in range(max(first, 1), int(highest / step) + 2)]
