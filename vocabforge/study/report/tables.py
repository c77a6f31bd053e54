"""The tables of a study, and its plot."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.console import DataCell, DataTable
from ...evaluate.reports.plots import METHOD_COLOURS, Trace, standalone, trace_lines
from ...evaluate.reports.tables import figure_cell
from ...evaluate.results.schema import Figure
from ...evaluate.results.summary import MT_BENCH_TASK
from .results import DRAWN, EVERYTHING, GREEDY, RARE, Cell, MethodFigures, StudyResults

_GROUP_NAMES = {EVERYTHING: "the benchmark", MT_BENCH_TASK: "MT-bench, first turns"}
_SPEED = "tokens/s, 8B shape, roofline"
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


def study_tables(results: StudyResults) -> dict[str, DataTable]:
    """All tables with rows by their key, in the order of the report."""
    found = {
        "methods": main_table(results),
        "categories": category_table(results),
        "rare": rare_table(results),
        "drawn": drawn_table(results),
        "lossless": checked_table(results),
    }
    return {key: table for key, table in found.items() if table.rows}


def markdown(results: StudyResults) -> str:
    """All tables as Markdown."""
    pieces = []
    for table in study_tables(results).values():
        pieces += [f"### {table.title}", table.caption, "\n".join(table.markdown())]
    facts = {**results.facts, "vocabforge": results.vocabforge, "made": results.created}
    pieces.append("\n".join(f"- {name}: {value}" for name, value in facts.items()))
    return "\n\n".join([*pieces, f"Command: `{results.command}`"]) + "\n"


def methods_table(results: StudyResults) -> DataTable:
    """The main methods with the main shape, greedy, for a terminal."""
    rows = [
        [one.label, percent(one.exact), *_figures(one.at(results.main_shape)), _speed(results, one)]
        for one in results.main_methods
    ]
    columns = ["draft vocabulary<", "exact logits", "tokens a cycle", "share of full, %", _SPEED]
    note = "one a family; accepted lengths are measured, tokens/s of the roofline are arithmetic"
    return DataTable(f"Draft vocabularies, {results.main_shape}, greedy", columns, rows, note)


def main_table(results: StudyResults) -> DataTable:
    """Every method with every shape, greedy, the headline's questions; predicted speed at the main shape."""
    checked = results.checked
    tree = checked.modes[-1].mode if checked else ""
    rows: list[list[object]] = []
    for one in results.methods:
        exact = DataCell(f"{one.exact * results.vocab_size:,.0f}", percent(one.exact))
        row = [_name(one), exact, *_by_shape(results, one, GREEDY), _speed(results, one)]
        if checked:
            known = checked.lengths.get(one.key, {}).get(tree)
            row.append(None if known is None else f"{known:.2f}")
        rows.append(row)
    columns = ["draft vocabulary<", "exact logits (of V)", *_shape_columns(results), _SPEED]
    columns += ["dynamic tree, decoded: tokens a cycle"] if checked else []
    note = (
        f"Measured: replay of the target's own greedy answers, {_questions(results)}, {_seeds(results)}. Exact logits: "
        "mean over draft steps (a low-rank head has none); in trees a router opens clusters for every node. Share: of "
        "the full head's accepted length with the same seed, with its 95% interval over questions. Tokens/s of one "
        f"request with {results.main_shape} are predicted from the accepted lengths of this study's small models by "
        "arithmetic: bytes of each head over the bandwidth, layer and target given."
    )
    return DataTable("Accepted length of all draft vocabularies", columns, rows, note)


def drawn_table(results: StudyResults) -> DataTable:
    """Temperature 1."""
    rows = [[_name(one), *_by_shape(results, one, DRAWN)] for one in results.methods]
    note = f"Measured: replay of answers drawn at temperature 1, {_questions(results)}, {_seeds(results)}."
    return DataTable("Temperature 1", ["draft vocabulary<", *_shape_columns(results)], rows, note)


def category_table(results: StudyResults) -> DataTable:
    """Groups of questions down, the main methods across."""
    shape = results.main_shape
    chosen = [one for one in results.main_methods if one.family != "full"]
    rows = []
    for group in results.groups:
        shares = [_figures(one.at(shape, group.key))[1] for one in chosen]
        full = _figures(results.full.at(shape, group.key))[0]
        name = _GROUP_NAMES.get(group.key, group.key.replace("_", " "))
        rows.append([name, f"{group.questions:,}", full, *shares])
    columns = ["questions<", "number", "full head: tokens a cycle", *(one.label for one in chosen)]
    note = (
        f"Measured: {shape}, greedy, share of the full head's accepted length in %, {_seeds(results)}. One method a "
        "family: the setting that is predicted to be quickest."
    )
    return DataTable("By category", columns, rows if len(rows) > 1 else [], note)


def rare_table(results: StudyResults) -> DataTable:
    """Rare-token questions beside all: what static vocabularies lose there."""
    group, rows = next((one for one in results.groups if one.key == RARE), None), []
    for one in results.methods if group else ():
        cells = [one.at(results.main_shape, key) for key in (EVERYTHING, RARE)]
        shares = [cell.share.value for cell in cells if cell and cell.share.value is not None]
        less = None if len(shares) < 2 else f"{round(100 * (shares[1] - shares[0]), 1) + 0.0:+.1f}"
        rows.append([_name(one), *(_figures(cell)[1] for cell in cells), less])
    columns = ["draft vocabulary<", "the benchmark, %", "rare data, %", "rare less all, points"]
    note = f"Measured: {results.main_shape}, greedy, share of the full head's accepted length in the same questions."
    if group:
        note += f" Rare data: {', '.join(group.sets)}; {group.questions:,} questions."
    return DataTable("Rare data", columns, rows, note)


def checked_table(results: StudyResults) -> DataTable:
    """The decoder itself beside plain decoding and the replay."""
    checked, note, rows = results.checked, "", []
    for mode in checked.modes if checked else ():
        cycles = f"{mode.equal_cycles:,} of {mode.cycles:,}" if mode.cycles else None
        rows.append([mode.mode, mode.outputs, mode.identical, mode.near_tied, mode.faults, cycles])
    if checked:
        own = checked.settings
        note = (
            f"Measured: the real decoder with every method on {checked.questions:,} questions ({checked.where}), its "
            "outputs beside plain decoding's, token by token. Near-tied: the target's own rounding decides between two "
            f"tokens. Dynamic tree: {own.get('tree_nodes')} nodes, {own.get('tree_topk')} children a node, depth "
            f"{own.get('tree_depth')}."
        )
    columns = ["decoded<", "outputs", "identical", "near-tied", "faults", "cycles as replayed"]
    return DataTable("Losslessness", columns, rows, note)


def share_plot(results: StudyResults) -> str | None:
    """SVG of the share of the full head's accepted length over exact logits, the points of one method name joined.

    A low-rank head scores no token exactly and is not shown.
    """
    looks, points = looks_of(results), dict[tuple[int, str], list[tuple[float, float]]]()
    for one in sorted(results.methods, key=lambda one: one.exact):
        cell = one.at(results.main_shape)
        if cell is not None and cell.share.value is not None and one.exact > 0:
            point = one.exact * results.vocab_size, 100 * cell.share.value
            points.setdefault((looks[one.key], one.name), []).append(point)
    if not points:
        return None
    traces = [
        Trace(look, [x for x, _ in some], [y for _, y in some], name) for (look, name), some in points.items()
    ]
    labels = "exact logits a draft step", "% of the full head's length"
    return standalone(trace_lines("share-file", labels, traces, log_x=True, legend=True))


def looks_of(results: StudyResults) -> dict[str, int]:
    """Method key -> number of its colour and marker: colours by family, markers by name within it."""
    names: dict[str, list[str]] = {}
    found = {}
    for one in results.methods:
        known = names.setdefault(one.family, [])
        if one.name not in known:
            known.append(one.name)
        found[one.key] = _LOOKS.get(one.family, METHOD_COLOURS + 5) + METHOD_COLOURS * known.index(one.name)
    return found


def percent(value: float) -> str:
    """A share in percent, with another digit if it is small."""
    return f"{100 * value:.{2 if value < 0.1 else 1}f}%"


def _name(one: MethodFigures) -> DataCell:
    return DataCell(one.name, one.setting)


def _figures(cell: Cell | None) -> list[object]:
    """Accepted length, and share of the full head's in percent, each with its spread below."""
    if cell is None:
        return [None, None]
    values = cell.share.model_dump()
    share = Figure(**{name: None if value is None else 100 * value for name, value in values.items()})
    return [figure_cell(cell.accepted, spread=True), figure_cell(share, 1, spread=True)]


def _by_shape(results: StudyResults, one: MethodFigures, temperature: str) -> list[object]:
    cells = [one.at(shape.key, temperature=temperature) for shape in results.shapes]
    return [figure for cell in cells for figure in _figures(cell)]


def _shape_columns(results: StudyResults) -> list[str]:
    return [f"{one.key}: {what}" for one in results.shapes for what in ("tokens a cycle", "share of full, %")]


def _speed(results: StudyResults, one: MethodFigures) -> DataCell | None:
    """Tokens a second at the main shape; below them the ratio to the full head's."""
    cells = [way.at(results.main_shape) for way in (one, results.full)]
    speeds = [cell.tokens_per_s for cell in cells if cell and cell.tokens_per_s]
    if len(speeds) < len(cells):
        return None
    return DataCell(f"{speeds[0]:,.1f}", f"{speeds[0] / speeds[1]:.2f}×")


def _questions(results: StudyResults) -> str:
    group = results.groups[0]
    return f"{group.questions:,} questions of {', '.join(group.sets)}"


def _seeds(results: StudyResults) -> str:
    count = len(results.seeds)
    return "one seed" if count == 1 else f"mean over {count} seeds ± their sample deviation"
