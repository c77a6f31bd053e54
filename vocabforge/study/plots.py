"""Charts of a study: results in, themed SVG out (see ``evaluate/plots.py`` for colours and the frame)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..evaluate.plots import WIDTH_IN, Bar, Trace, bar_rows, dot_chart, standalone, trace_lines
from ..tune.charts import WIDE_IN
from .chosen import lines, looks, main_methods, main_shape, static_of
from .claim_looks import EXACT, FASTER, KEPT
from .joined import COLUMNS, GREEDY, ROOFLINE, SHAPE
from .names import COLUMN_NAMES, shown_group
from .results import MethodFigures, StudyResults
from .spots import Series, spot_chart

SHARE_LABEL = "% of the full head's length"


@dataclass(frozen=True)
class Panel:
    """A chart with its words.

    Attributes:
        key: file name without ending, and prefix of the SVG's ids.
        legend: number of colour and marker, and what it stands for.
        svg: for a phone or a column. wide: for a whole page; empty where the column's width will do.
        file: SVG that stands alone.
    """

    key: str
    title: str
    note: str
    legend: tuple[tuple[int, str], ...]
    svg: str
    file: str
    wide: str = ""


def study_panels(results: StudyResults) -> list[Panel]:
    """All charts, in the order of the page."""
    return [
        *_shares(results),
        *_speeds(results),
        *_categories(results),
        *_steps(results),
        *_head_times(results),
    ]


def plot_files(panels: Sequence[Panel]) -> dict[str, str]:
    """File name -> SVG text."""
    return {f"{panel.key}.svg": panel.file for panel in panels}


def _series(
    results: StudyResults, spot: Callable[[MethodFigures], tuple[float, float, float] | None]
) -> list[Series]:
    """One series a method name, of the methods that have a point."""
    look = looks(results.methods)
    found = []
    for name, members in lines(results.methods).items():
        spots = [at for one in members if (at := spot(one)) is not None]
        if spots:
            found.append(Series(look[members[0].key], name, spots))
    return found


def _shares(results: StudyResults) -> list[Panel]:
    """What is kept of the full head's accepted length against what it costs in exact logits."""
    shape = main_shape(results)

    def spot(one: MethodFigures) -> tuple[float, float, float] | None:
        cell = one.at(shape)
        if cell is None or cell.share.value is None or one.exact <= 0:
            return None
        return one.exact * results.vocab_size, 100 * cell.share.value, 100 * (cell.share.sd or 0.0)

    series = _series(results, spot)
    if not series:
        return []
    labels = ("exact logits a draft step", SHARE_LABEL)
    marks = (EXACT * results.vocab_size, 100 * KEPT)
    note = (
        f"Measured, {shape}, greedy, mean over {len(results.seeds)} seed{'s' if len(results.seeds) > 1 else ''}; bars: "
        f"one standard deviation over seeds. Dashed: the goal (upper left), {KEPT:.1%} with at most {EXACT:.0%} of the "
        "logits"
    )
    note += "".join(_unscored(one, shape) for one in results.methods if one.exact <= 0)
    return [_both("share", "Accepted length kept, and its cost", note, series, labels, marks, sizes=True)]


def _unscored(one: MethodFigures, shape: str) -> str:
    """What has no place on the axis of exact logits."""
    cell = one.at(shape)
    kept = None if cell is None else cell.share.value
    return "" if kept is None else f". Not shown: {one.label}, which scores none exactly and keeps {kept:.1%}"


def _speeds(results: StudyResults) -> list[Panel]:
    """Predicted speed at the larger shape against the share that is kept."""
    shape, found = main_shape(results), []
    for column in (SHAPE, ROOFLINE):

        def spot(one: MethodFigures, column: str = column) -> tuple[float, float, float] | None:
            cell = one.at(shape)
            if cell is None or cell.share.value is None or column not in cell.predicted:
                return None
            return 100 * cell.share.value, cell.predicted[column].tokens_per_s, 0.0

        series = _series(results, spot)
        if not series:
            continue
        static = static_of(results, shape, column)
        known = spot(static) if static is not None else None
        level = None if known is None else FASTER * known[1]
        how = "times measured" if column == SHAPE else "arithmetic: bytes over bandwidth"
        note = f"Predicted ({how}), {shape}, greedy"
        if static is not None:
            note += f". Dashed: the goal, {KEPT:.1%} and {FASTER:.2f} times {static.label} (upper right)"
        labels = (SHARE_LABEL, "predicted tokens/s")
        title = f"Predicted tokens/s: {COLUMN_NAMES[column]}"
        found.append(_both(f"speed-{column}", title, note, series, labels, (100 * KEPT, level)))
    return found


def _both(
    key: str,
    title: str,
    note: str,
    series: Sequence[Series],
    labels: tuple[str, str],
    marks: tuple[float | None, float | None],
    *,
    sizes: bool = False,
) -> Panel:
    """A panel with a chart for the page, one for phones, and a file."""

    def made(name: str, width: float, *, legend: bool = False) -> str:
        return spot_chart(name, series, labels, marks, sizes=sizes, width=width, legend=legend)

    return Panel(
        key,
        title,
        note,
        tuple((one.index, one.label) for one in series),
        svg=made(f"{key}-narrow", WIDTH_IN),
        wide=made(f"{key}-wide", WIDE_IN),
        file=standalone(made(f"{key}-file", WIDE_IN, legend=True)),
    )


def _categories(results: StudyResults) -> list[Panel]:
    """What the main methods keep, group by group."""
    shape, look = main_shape(results), looks(results.methods)
    chosen = [one for one in main_methods(results) if one.family != "full"]
    keys = [group.key for group in results.groups]
    if not chosen or len(keys) < 2:
        return []

    def kept(one: MethodFigures, key: str) -> float | None:
        cell = one.at(shape, key)
        return None if cell is None or cell.share.value is None else 100 * cell.share.value

    series = {look[one.key]: [kept(one, key) for key in keys] for one in chosen}
    names = {look[one.key]: one.label for one in chosen}
    short = {look[one.key]: one.name for one in chosen}
    rows = [shown_group(group.key, group.kind) for group in results.groups]
    label = SHARE_LABEL
    return [
        Panel(
            "categories",
            "Accepted length kept, by group of questions",
            f"Measured, {shape}, greedy; the dashed line is the full head in the same questions",
            tuple(names.items()),
            svg=dot_chart("categories", label, rows, series, reference=100.0),
            # Settings stand in the table: a name with its own is wider than half the chart.
            file=standalone(dot_chart("categories-file", label, rows, series, reference=100.0, names=short)),
        )
    ]


def _steps(results: StudyResults) -> list[Panel]:
    """Acceptance at each draft step, given those before."""
    look, traces, legend = looks(results.methods), [], []
    for one in main_methods(results):
        shares = one.conditional.get(GREEDY, [])
        if any(share is not None for share in shares):
            index = look[one.key]
            values = [None if share is None else 100 * share for share in shares]
            traces.append(Trace(index, range(1, len(shares) + 1), values))
            legend.append((index, one.label))
    if not traces:
        return []
    labels = ("draft step", "accepted, %")
    svg = trace_lines("steps", labels, traces)
    note = "Measured, chain, greedy: share of the draft tokens whose predecessors were accepted"
    return [Panel("steps", "Acceptance by draft step", note, tuple(legend), svg, standalone(svg))]


def _head_times(results: StudyResults) -> list[Panel]:
    """Time of the draft head in a cycle, by where it comes from."""
    shape, look, found = main_shape(results), looks(results.methods), []
    for column in COLUMNS:
        bars = []
        for one in main_methods(results):
            cell = one.at(shape)
            if cell is not None and column in cell.predicted:
                ms = 1e3 * cell.predicted[column].head_s
                bars.append(Bar(look[one.key], one.name, f"{ms:.3g} ms", ms))
        if not bars:
            continue
        source = "Arithmetic: bytes over bandwidth" if column == ROOFLINE else "Measured head times"
        svg = bar_rows(f"heads-{column}", "ms of the draft head a cycle", bars)
        title = f"Draft head: {COLUMN_NAMES[column]}"
        found.append(
            Panel(f"heads-{column}", title, f"{source}; a cycle of {shape}", (), svg, standalone(svg))
        )
    return found
