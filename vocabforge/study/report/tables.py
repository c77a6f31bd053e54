"""The tables of a study: as Markdown, for the page, and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.console import DataCell, DataTable, markdown_table
from ...evaluate.results.schema import Figure
from ...evaluate.results.summary import MT_BENCH_TASK
from .results import (
    COLUMNS,
    DRAWN,
    EVERYTHING,
    GREEDY,
    MACHINE,
    RARE,
    ROOFLINE,
    Cell,
    MethodFigures,
    StudyResults,
)

DASH = "–"
COLUMN_NAMES = {MACHINE: "this model, this machine", ROOFLINE: "8B shape, roofline"}
_GROUP_NAMES = {EVERYTHING: "the benchmark", MT_BENCH_TASK: "MT-bench, first turns"}


@dataclass(frozen=True)
class StudyTable:
    """A table.

    Attributes:
        key: anchor on the page.
        note: what its figures are: measured, predicted, or arithmetic.
        columns: headings; the first is of the rows' names.
        rows: cells as text; the first is the row's name.
        keys: method of each row; empty if rows are no methods.
    """

    key: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    keys: Sequence[str] = ()

    def shown(self, look: Mapping[str, int]) -> DataTable:
        """The table for a page: names with their colour and setting, figures with their spread below.

        Args:
            look: number of each method's colour and marker; other methods' rows are left out.
        """
        rows: list[list[object]] = []
        for row, key in zip(self.rows, self.keys or [""] * len(self.rows), strict=True):
            if key and key not in look:
                continue
            name, _, setting = row[0].partition(", ")
            first = DataCell(name, setting, look=look[key]) if key else DataCell(row[0])
            figures = [text.partition(" ") for text in row[1:]]
            rows.append([first, *(DataCell(figure, spread) for figure, _, spread in figures)])
        return DataTable("", [f"{self.columns[0]}<", *self.columns[1:]], rows)


def length(cell: Cell | None) -> str:
    """``2.61 ±0.02``: accepted length and its deviation over seeds."""
    return DASH if cell is None else _with_deviation(cell.accepted, 2)


def share(cell: Cell | None, *, between: bool = True) -> str:
    """``98.5 ±0.1 [98.2–98.8]``: share of the full head's accepted length in percent, with its interval if it has a
    width."""
    if cell is None or cell.share.value is None:
        return DASH
    values = cell.share.model_dump()
    found = Figure(**{name: None if value is None else 100 * value for name, value in values.items()})
    text = _with_deviation(found, 1)
    if between and found.low is not None and found.high is not None and found.low != found.high:
        text += f" [{found.low:.1f}–{found.high:.1f}]"
    return text


def percent(value: float | None) -> str:
    """A share in percent, with another digit if it is small."""
    return DASH if value is None else f"{100 * value:.{2 if value < 0.1 else 1}f}%"


def _with_deviation(figure: Figure, digits: int) -> str:
    if figure.value is None:
        return DASH
    text = f"{figure.value:,.{digits}f}"
    return text if figure.sd is None else f"{text} ±{figure.sd:.{digits}f}"


def shown_group(key: str) -> str:
    """Name of a group."""
    return _GROUP_NAMES.get(key, key.replace("_", " "))


def study_tables(results: StudyResults) -> list[StudyTable]:
    """All tables with rows, in the order of the report."""
    found = [main_table(results), category_table(results), rare_table(results)]
    found += [drawn_table(results), checked_table(results)]
    return [table for table in found if table.rows]


def markdown(results: StudyResults) -> str:
    """All tables as Markdown."""
    pieces = []
    for part in study_tables(results):
        pieces += [f"### {part.title}", part.note, "\n".join(markdown_table(part.columns, part.rows))]
    if results.missing:
        pieces += ["### What is missing", "\n".join(f"- {one}" for one in results.missing)]
    pieces += ["Command: `" + results.command + "`"]
    return "\n\n".join(pieces) + "\n"


def methods_table(results: StudyResults) -> DataTable:
    """The main methods with the main shape, greedy, for a terminal."""
    shape = results.main_shape
    columns = ["exact logits", "tokens a cycle", "share of full, %"]
    columns += [f"tokens/s, {COLUMN_NAMES[column]}" for column in _columns(results)]
    rows = []
    for one in results.main_methods:
        cell = one.at(shape)
        figures = [percent(one.exact), length(cell), share(cell, between=False)]
        rows.append([one.label, *figures, *(_speed(one, shape, column) for column in _columns(results))])
    title = f"Draft vocabularies, {shape}, greedy"
    note = "one a family; accepted lengths are measured, tokens/s predicted, those of the roofline arithmetic"
    return DataTable(title, ["draft vocabulary<", *columns], rows, note)


def _columns(results: StudyResults) -> list[str]:
    """Prediction columns; version 1 had one more."""
    return [column for column in COLUMNS if column in results.columns]


def main_table(results: StudyResults) -> StudyTable:
    """Every method with every shape, greedy, the headline's questions; predicted speed at the main shape."""
    shape, checked = results.main_shape, results.checked
    full = next(one for one in results.methods if one.family == "full")
    tree = checked.modes[-1].mode if checked else ""
    rows = []
    for one in results.methods:
        row = [one.label, f"{one.exact * results.vocab_size:,.0f} ({percent(one.exact)})"]
        row += _by_shape(results, one, GREEDY)
        row += [_speed(one, shape, column, full) for column in _columns(results)]
        if checked:
            known = checked.lengths.get(one.key, {}).get(tree)
            row.append(DASH if known is None else f"{known:.2f}")
        rows.append(row)
    columns = ["draft vocabulary", "exact logits (of V)", *_shape_columns(results)]
    columns += [f"tokens/s, {COLUMN_NAMES[column]}" for column in _columns(results)]
    columns += ["dynamic tree, decoded: tokens a cycle"] if checked else []
    note = (
        f"Measured: replay of the target's own greedy answers, {_questions(results)}, {_seeds(results)}. Exact logits: "
        "mean over draft steps (a low-rank head has none); in trees a router opens clusters for every node. Share: of "
        "the full head's accepted length with the same seed; square brackets: 95% interval over questions."
    )
    if _columns(results):
        note += (
            f" Tokens/s of one request with {shape}, and the ratio to the full head's, are predicted from the accepted "
            "lengths of this study's small models; those of the roofline are arithmetic: bytes of each head over the "
            "bandwidth, layer and target given. Fixed trees get the times of dynamic trees of as many levels and nodes."
        )
    keys = [one.key for one in results.methods]
    return StudyTable("methods", "Accepted length of all draft vocabularies", note, columns, rows, keys)


def _speed(one: MethodFigures, shape: str, column: str, full: MethodFigures | None = None) -> str:
    """``31.2``, or ``31.2 (1.13×)`` of the full head's."""
    cells = [way.at(shape) for way in (one, full) if way is not None]
    speeds = [cell.predicted[column].tokens_per_s for cell in cells if cell and column in cell.predicted]
    if len(speeds) < len(cells):
        return DASH
    text = f"{speeds[0]:,.{1 if speeds[0] >= 10 else 3}f}"
    return text if full is None else f"{text} ({speeds[0] / speeds[1]:.2f}×)"


def drawn_table(results: StudyResults) -> StudyTable:
    """Temperature 1."""
    methods = results.methods if DRAWN in results.temperatures else []
    rows = [[one.label, *_by_shape(results, one, DRAWN)] for one in methods]
    note = f"Measured: replay of answers drawn at temperature 1, {_questions(results)}, {_seeds(results)}."
    columns = ["draft vocabulary", *_shape_columns(results)]
    return StudyTable("drawn", "Temperature 1", note, columns, rows, [one.key for one in methods])


def _shape_columns(results: StudyResults) -> list[str]:
    return [f"{one.key}: {what}" for one in results.shapes for what in ("tokens a cycle", "share of full, %")]


def _by_shape(results: StudyResults, one: MethodFigures, temperature: str) -> list[str]:
    """Accepted length and share with every shape."""
    cells = [one.at(shape.key, temperature=temperature) for shape in results.shapes]
    return [text for cell in cells for text in (length(cell), share(cell))]


def category_table(results: StudyResults) -> StudyTable:
    """Groups of questions down, the main methods across."""
    shape = results.main_shape
    full = next(one for one in results.methods if one.family == "full")
    chosen = [one for one in results.main_methods if one.family != "full"]
    rows = []
    for group in results.groups:
        cells = [share(one.at(shape, group.key), between=False) for one in chosen]
        mine = length(full.at(shape, group.key))
        rows.append([shown_group(group.key), f"{group.questions:,}", mine, *cells])
    columns = ["questions", "number", "full head: tokens a cycle", *(one.label for one in chosen)]
    note = (
        f"Measured: {shape}, greedy, share of the full head's accepted length in %, {_seeds(results)}. One method a "
        "family: the setting that is predicted to be quickest, or keeps most if nothing is predicted."
    )
    return StudyTable("categories", "By category", note, columns, rows if len(rows) > 1 else [])


def rare_table(results: StudyResults) -> StudyTable:
    """Rare-token questions beside all: what static vocabularies lose there."""
    group = next((one for one in results.groups if one.key == RARE), None)
    if group is None:
        return StudyTable("rare", "Rare data", "", [], [])
    rows = []
    for one in results.methods:
        cells = [one.at(results.main_shape, key) for key in (EVERYTHING, RARE)]
        shares = [cell.share.value for cell in cells if cell and cell.share.value is not None]
        less = DASH if len(shares) < 2 else f"{round(100 * (shares[1] - shares[0]), 1) + 0.0:+.1f}"
        rows.append([one.label, *map(share, cells), less])
    columns = ["draft vocabulary", f"{shown_group(EVERYTHING)}, %", "rare data, %", "rare less all, points"]
    note = (
        f"Measured: {results.main_shape}, greedy, share of the full head's accepted length in the same questions. Rare "
        f"data: {', '.join(group.sets)}; {group.questions:,} questions."
    )
    return StudyTable("rare", "Rare data", note, columns, rows, [one.key for one in results.methods])


def checked_table(results: StudyResults) -> StudyTable:
    """The decoder itself beside plain decoding and the replay."""
    checked = results.checked
    if checked is None:
        return StudyTable("lossless", "Losslessness", "", [], [])
    rows = []
    for mode in checked.modes:
        counts = [mode.outputs, mode.identical, mode.near_tied, mode.faults]
        cycles = f"{mode.equal_cycles:,} of {mode.cycles:,}" if mode.cycles else DASH
        rows.append([mode.mode, *(f"{count:,}" for count in counts), cycles])
    columns = ["decoded", "outputs", "identical", "near-tied", "faults", "cycles as replayed"]
    own = checked.settings
    note = (
        f"Measured: the real decoder with every method on {checked.questions:,} questions ({checked.where}), its "
        "outputs beside plain decoding's, token by token. Near-tied: the target's own rounding decides between two "
        "tokens. Dynamic tree: "
        f"{own.get('tree_nodes')} nodes, {own.get('tree_topk')} children a node, depth {own.get('tree_depth')}."
    )
    return StudyTable("lossless", "Losslessness", note, columns, rows)


def _questions(results: StudyResults) -> str:
    group = results.groups[0]
    return f"{group.questions:,} questions of {', '.join(group.sets)}"


def _seeds(results: StudyResults) -> str:
    """How figures are joined over seeds."""
    count = len(results.seeds)
    return "one seed" if count == 1 else f"mean over {count} seeds ± their sample deviation"
