"""Charts of a study (``evaluate/reports/plots.py`` has colours and the frame)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...evaluate.reports.page import PageChart
from ...evaluate.reports.plots import METHOD_COLOURS, Trace, dot_chart, standalone, trace_lines
from .results import ROOFLINE, Cell, MethodFigures, StudyResults
from .tables import COLUMN_NAMES, shown_group

SHARE_LABEL = "% of the full head's length"
# Family -> number of its colour and marker (``plots.method_colour``): grey is what others are held against.
_LOOKS: Mapping[str, int] = {
    "full": 0,
    "fr": 1,
    "trim": 2,
    "ranker": 3,
    "router": 4,
    "hybrid": 5,
    "context": 6,
    "reduced": METHOD_COLOURS,
    "pa-fr": METHOD_COLOURS + 1,
    "low-rank": METHOD_COLOURS + 6,
}


def looks(methods: Sequence[MethodFigures]) -> dict[str, int]:
    """Method key -> number of its colour and marker: colours by family, markers by name within it."""
    names: dict[str, list[str]] = {}
    found = {}
    for one in methods:
        known = names.setdefault(one.family, [])
        if one.name not in known:
            known.append(one.name)
        found[one.key] = _LOOKS.get(one.family, METHOD_COLOURS + 5) + METHOD_COLOURS * known.index(one.name)
    return found


def study_charts(results: StudyResults) -> list[PageChart]:
    """All charts with something to show, in the order of the page."""
    shape = results.main_shape

    def cost(one: MethodFigures, cell: Cell, kept: float) -> tuple[float, float] | None:
        return (one.exact * results.vocab_size, kept) if one.exact > 0 else None

    def speed(one: MethodFigures, cell: Cell, kept: float) -> tuple[float, float] | None:
        return (kept, cell.predicted[ROOFLINE].tokens_per_s) if ROOFLINE in cell.predicted else None

    seeds = f", mean over {len(results.seeds)} seeds" if len(results.seeds) > 1 else ""
    note = f"Measured, {shape}, greedy{seeds}; a low-rank head scores none exactly and is not shown"
    title, labels = "Accepted length kept, and its cost", ("exact logits a draft step", SHARE_LABEL)
    found = _points(results, "share", title, note, labels, cost)
    title, labels = f"Predicted tokens/s: {COLUMN_NAMES[ROOFLINE]}", (SHARE_LABEL, "predicted tokens/s")
    note = f"Predicted (arithmetic: bytes over bandwidth), {shape}, greedy"
    return [*found, *_points(results, "speed", title, note, labels, speed), *_categories(results)]


def _points(
    results: StudyResults,
    key: str,
    title: str,
    note: str,
    labels: tuple[str, str],
    point: Callable[[MethodFigures, Cell, float], tuple[float, float] | None],
) -> list[PageChart]:
    """A chart of points, those of one method name joined.

    Args:
        point: method, its cell of the main shape, and the share in percent -> point.
    """
    look = looks(results.methods)
    points: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for one in sorted(results.methods, key=lambda one: one.exact):
        cell = one.at(results.main_shape)
        if cell is None or cell.share.value is None:
            continue
        if (found := point(one, cell, 100 * cell.share.value)) is not None:
            points.setdefault((look[one.key], one.name), []).append(found)
    if not points:
        return []
    traces = [
        Trace(index, [x for x, _ in some], [y for _, y in some], name)
        for (index, name), some in points.items()
    ]
    sizes = key == "share"  # numbers of tokens, on a logarithmic axis
    svg = trace_lines(key, labels, traces, log_x=sizes)
    file = standalone(trace_lines(f"{key}-file", labels, traces, log_x=sizes, legend=True))
    return [PageChart(title, note, svg, list(points), key, file)]


def _categories(results: StudyResults) -> list[PageChart]:
    """What the main methods keep, group by group."""
    shape, look = results.main_shape, looks(results.methods)
    chosen = [one for one in results.main_methods if one.family != "full"]
    if not chosen or len(results.groups) < 2:
        return []

    def kept(one: MethodFigures, group: str) -> float | None:
        cell = one.at(shape, group)
        return None if cell is None or cell.share.value is None else 100 * cell.share.value

    series = {look[one.key]: [kept(one, group.key) for group in results.groups] for one in chosen}
    short = {look[one.key]: one.name for one in chosen}
    rows = [shown_group(group.key) for group in results.groups]
    file = standalone(dot_chart("categories-file", SHARE_LABEL, rows, series, reference=100.0, names=short))
    return [
        PageChart(
            "Accepted length kept, by group of questions",
            f"Measured, {shape}, greedy; the dashed line is the full head in the same questions",
            dot_chart("categories", SHARE_LABEL, rows, series, reference=100.0),
            [(look[one.key], one.label) for one in chosen],
            "categories",
            file,
        )
    ]
