"""Charts of a study (``evaluate/reports/plots.py`` has colours and the frame)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...evaluate.reports.page import PageChart
from ...evaluate.reports.plots import (
    METHOD_COLOURS,
    Bar,
    Trace,
    bar_rows,
    dot_chart,
    standalone,
    trace_lines,
)
from ...evaluate.results.summary import MT_BENCH_TASK
from .results import CHAIN, COLUMNS, EVERYTHING, GREEDY, MACHINE, ROOFLINE, Cell, MethodFigures, StudyResults

SHARE_LABEL = "% of the full head's length"
COLUMN_NAMES = {
    MACHINE: "this model, this machine",
    ROOFLINE: "8B shape, roofline",
}
_GROUP_NAMES = {EVERYTHING: "the benchmark", MT_BENCH_TASK: "MT-bench, first turns"}
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


def shown_group(key: str, kind: str) -> str:
    """Name of a group; categories of a task stand below it."""
    shown = _GROUP_NAMES.get(key, key.replace("_", " "))
    return f"· {shown}" if kind == "category" else shown


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


def main_shape(results: StudyResults) -> str:
    """The shape of charts and short tables: the largest tree, else the chain."""
    return max(results.shapes, key=lambda shape: (shape.key != CHAIN, shape.nodes)).key


def main_methods(results: StudyResults) -> list[MethodFigures]:
    """One method a family: the one that is predicted to be quickest at the larger shape, else the one that keeps
    most."""
    shape = main_shape(results)

    def worth(method: MethodFigures) -> tuple[float, float]:
        cell = method.at(shape)
        if cell is None:
            return 0.0, 0.0
        speed = cell.predicted[ROOFLINE].tokens_per_s if ROOFLINE in cell.predicted else 0.0
        return speed, cell.share.value or 0.0

    families: dict[str, list[MethodFigures]] = {}
    for one in results.methods:
        families.setdefault(one.family, []).append(one)
    return [max(members, key=worth) for members in families.values()]


def study_panels(results: StudyResults) -> list[PageChart]:
    """All charts, in the order of the page."""
    return [
        *_shares(results),
        *_speeds(results),
        *_categories(results),
        *_steps(results),
        *_head_times(results),
    ]


def _spots(
    results: StudyResults,
    words: tuple[str, str, str],
    labels: tuple[str, str],
    spot: Callable[[MethodFigures, Cell, float], tuple[float, float] | None],
    *,
    sizes: bool = False,
) -> list[PageChart]:
    """A chart of points, those of one method name joined; ``words`` are key, title and note.

    Args:
        spot: method, its cell of the main shape, and the share in percent -> point.
        sizes: x is a number of tokens, on a logarithmic axis.
    """
    shape, look = main_shape(results), looks(results.methods)
    points: dict[str, list[tuple[float, float]]] = {one.name: [] for one in results.methods}
    for one in sorted(results.methods, key=lambda one: one.exact):
        cell = one.at(shape)
        if cell is None or cell.share.value is None:
            continue
        if (found := spot(one, cell, 100 * cell.share.value)) is not None:
            points[one.name].append(found)
    index = {one.name: look[one.key] for one in results.methods}
    traces = [
        Trace(index[name], [x for x, _ in some], [y for _, y in some], name)
        for name, some in points.items()
        if some
    ]
    if not traces:
        return []
    key, title, note = words
    svg = trace_lines(key, labels, traces, log_x=sizes)
    file = standalone(trace_lines(f"{key}-file", labels, traces, log_x=sizes, legend=True))
    legend = [(one.index, one.label) for one in traces]
    return [PageChart(title, note, svg, legend, key, file)]


def _shares(results: StudyResults) -> list[PageChart]:
    """What is kept of the full head's accepted length against what it costs in exact logits."""
    shape = main_shape(results)

    def spot(one: MethodFigures, cell: Cell, kept: float) -> tuple[float, float] | None:
        if one.exact <= 0:
            return None
        return one.exact * results.vocab_size, kept

    count = len(results.seeds)
    note = f"Measured, {shape}, greedy" + (f", mean over {count} seeds" if count > 1 else "")
    for one in results.methods:
        cell = one.at(shape)
        if one.exact <= 0 and cell is not None and cell.share.value is not None:
            note += f". Not shown: {one.label}, which scores none exactly and keeps {cell.share.value:.1%}"
    words = "share", "Accepted length kept, and its cost", note
    return _spots(results, words, ("exact logits a draft step", SHARE_LABEL), spot, sizes=True)


def _speeds(results: StudyResults) -> list[PageChart]:
    """Predicted speed at the larger shape against the share that is kept."""

    def spot(one: MethodFigures, cell: Cell, kept: float) -> tuple[float, float] | None:
        return (kept, cell.predicted[ROOFLINE].tokens_per_s) if ROOFLINE in cell.predicted else None

    note = f"Predicted (arithmetic: bytes over bandwidth), {main_shape(results)}, greedy"
    words = "speed", f"Predicted tokens/s: {COLUMN_NAMES[ROOFLINE]}", note
    return _spots(results, words, (SHARE_LABEL, "predicted tokens/s"), spot)


def _categories(results: StudyResults) -> list[PageChart]:
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
    short = {look[one.key]: one.name for one in chosen}
    rows = [shown_group(group.key, group.kind) for group in results.groups]
    return [
        PageChart(
            "Accepted length kept, by group of questions",
            f"Measured, {shape}, greedy; the dashed line is the full head in the same questions",
            dot_chart("categories", SHARE_LABEL, rows, series, reference=100.0),
            [(look[one.key], one.label) for one in chosen],
            "categories",
            # Settings stand in the table: a name with its own is wider than half the chart.
            standalone(dot_chart("categories-file", SHARE_LABEL, rows, series, reference=100.0, names=short)),
        )
    ]


def _steps(results: StudyResults) -> list[PageChart]:
    """Acceptance at each draft step, given those before."""
    look, traces, legend = looks(results.methods), [], []
    for one in main_methods(results):
        shares = one.conditional.get(GREEDY, [])
        if any(share is not None for share in shares):
            values = [None if share is None else 100 * share for share in shares]
            traces.append(Trace(look[one.key], range(1, len(shares) + 1), values))
            legend.append((look[one.key], one.label))
    if not traces:
        return []
    svg = trace_lines("steps", ("draft step", "accepted, %"), traces)
    note = "Measured, chain, greedy: share of the draft tokens whose predecessors were accepted"
    return [PageChart("Acceptance by draft step", note, svg, legend, "steps", standalone(svg))]


def _head_times(results: StudyResults) -> list[PageChart]:
    """Time of the draft head in a cycle, by where it comes from."""
    shape, look, found = main_shape(results), looks(results.methods), []
    for column in COLUMNS:
        bars = []
        for one in main_methods(results):
            cell = one.at(shape)
            if cell is not None and column in cell.predicted:
                ms = 1e3 * cell.predicted[column].head_s
                bars.append(Bar(look[one.key], one.name, f"{ms:.3g} ms", ms))
        if bars:
            source = "Arithmetic: bytes over bandwidth" if column == ROOFLINE else "Measured head times"
            svg = bar_rows(f"heads-{column}", "ms of the draft head a cycle", bars)
            title, note = f"Draft head: {COLUMN_NAMES[column]}", f"{source}; a cycle of {shape}"
            found.append(PageChart(title, note, svg, (), f"heads-{column}", standalone(svg)))
    return found
