"""The tables of a study: as Markdown, for the page, and for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...core.console import DataCell, DataTable, markdown_table
from ...evaluate.results.schema import Figure
from .plots import COLUMN_NAMES, main_methods, main_shape, shown_group
from .results import COLUMNS, DRAWN, EVERYTHING, GREEDY, MACHINE, RARE, ROOFLINE, Cell, StudyResults

DASH = "–"
_COLUMN_NOTES = {
    MACHINE: "this study's models, all parts of a cycle measured",
    ROOFLINE: "arithmetic, nothing of it measured: bytes of each head over the bandwidth, layer and target given",
}


@dataclass(frozen=True)
class StudyTable:
    """A table.

    Attributes:
        key: anchor on the page.
        note: what its figures are: measured, predicted, or arithmetic.
        columns: headings; the first is of the rows' names.
        rows: cells as text; the first is the row's name.
        text: number of columns from the left that are text, not numbers.
        keys: method of each row; empty if rows are no methods.
    """

    key: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1
    keys: Sequence[str] = ()

    def shown(self, look: Mapping[str, int], only: Collection[str] | None = None) -> DataTable:
        """The table for a page: names with their setting and colour, figures with their spread below.

        Args:
            look: number of each method's colour and marker.
            only: methods whose rows are shown; None: all.
        """
        named = bool(self.keys) and self.text == 2  # the second column tells rows of one name apart
        keys = self.keys or [""] * len(self.rows)
        columns = [f"{name}<" if at < self.text else name for at, name in enumerate(self.columns)]
        rows: list[list[object]] = []
        for row, key in zip(self.rows, keys, strict=True):
            if only is not None and key not in only:
                continue
            cells: list[object] = list(row[: self.text])
            for text in row[self.text :]:
                figure, _, spread = text.partition(" ")
                cells.append(DataCell(figure, spread))
            cells[0] = DataCell(row[0], row[1] if named else "", look=look.get(key))
            rows.append([cells[0], *cells[2:]] if named else cells)
        return DataTable("", [columns[0], *columns[2:]] if named else columns, rows)


def length(cell: Cell | None) -> str:
    """``2.61 ±0.02``: accepted length and its deviation over seeds."""
    return DASH if cell is None else _with_deviation(cell.accepted, 2)


def share(cell: Cell | None, *, between: bool = True) -> str:
    """``98.5 ±0.1 [98.2–98.8]``: share of the full head's accepted length in percent, with its interval if it has a
    width."""
    if cell is None or cell.share.value is None:
        return DASH
    values = {name: getattr(cell.share, name) for name in ("value", "sd", "low", "high")}
    found = Figure(**{name: None if value is None else 100 * value for name, value in values.items()})
    text = _with_deviation(found, 1)
    if between and found.low is not None and found.high is not None and found.low != found.high:
        text += f" [{found.low:.1f}–{found.high:.1f}]"
    return text


def percent(value: float | None) -> str:
    """A share in percent, with another digit if it is small."""
    return DASH if value is None else f"{100 * value:.{2 if value < 0.1 else 1}f}%"


def points(one: Cell | None, other: Cell | None) -> str:
    """Difference of two shares in percentage points."""
    if one is None or other is None or one.share.value is None or other.share.value is None:
        return DASH
    return f"{round(100 * (one.share.value - other.share.value), 1) + 0.0:+.1f}"


def _with_deviation(figure: Figure, digits: int) -> str:
    if figure.value is None:
        return DASH
    text = f"{figure.value:,.{digits}f}"
    return text if figure.sd is None else f"{text} ±{figure.sd:.{digits}f}"


def study_parts(results: StudyResults) -> list[StudyTable]:
    """All tables with rows, in the order of the report."""
    found = [
        main_part(results),
        speed_part(results),
        category_part(results),
        rare_part(results),
        drawn_part(results),
        coverage_part(results),
        checked_part(results),
        decoded_part(results),
    ]
    return [part for part in found if part.rows]


def markdown(results: StudyResults) -> str:
    """All tables as Markdown."""
    pieces = []
    for part in study_parts(results):
        table = markdown_table(part.columns, part.rows, text=part.text)
        pieces += [f"### {part.title}", part.note, "\n".join(table)]
    if results.missing:
        pieces += ["### What is missing", "\n".join(f"- {one}" for one in results.missing)]
    pieces += ["Command: `" + results.command + "`"]
    return "\n\n".join(pieces) + "\n"


def methods_table(results: StudyResults) -> DataTable:
    """The main methods with the main shape, greedy, for a terminal."""
    shape = main_shape(results)
    columns = [column for column in COLUMNS if column in results.columns]
    rows = []
    for one in main_methods(results):
        cell = one.at(shape)
        speeds = [None if cell is None else cell.predicted.get(column) for column in columns]
        shown = [None if speed is None else f"{speed.tokens_per_s:,.1f}" for speed in speeds]
        rows.append([one.label, percent(one.exact), length(cell), share(cell, between=False), *shown])
    return DataTable(
        f"Draft vocabularies, {shape}, greedy",
        [
            "draft vocabulary<",
            "exact logits",
            "tokens a cycle",
            "share of full, %",
            *(f"tokens/s, {COLUMN_NAMES[column]}" for column in columns),
        ],
        rows,
        "one a family; accepted lengths are measured, tokens/s predicted, those of the roofline arithmetic",
    )


def main_part(results: StudyResults) -> StudyTable:
    """Every method with every shape, greedy, the headline's questions."""
    note = (
        f"Measured: replay of the target's own greedy answers, {_questions(results)}, {_seeds(results)}. Exact logits: "
        "mean over draft steps (a low-rank head has none); in trees a router opens clusters for every node. Share: of "
        "the full head's accepted length with the same seed; square brackets: 95% interval over questions."
    )
    rows = [
        [one.name, one.setting, f"{one.exact * results.vocab_size:,.0f} ({percent(one.exact)})", *cells]
        for one, cells in zip(results.methods, _by_shape(results, GREEDY))
    ]
    columns = ["draft vocabulary", "setting", "exact logits (of V)", *_shape_columns(results)]
    keys = [one.key for one in results.methods]
    return StudyTable("methods", "Accepted length of all draft vocabularies", note, columns, rows, 2, keys)


def drawn_part(results: StudyResults) -> StudyTable:
    """Temperature 1."""
    there = DRAWN in results.temperatures
    found = zip(results.methods, _by_shape(results, DRAWN)) if there else ()
    rows = [[one.name, one.setting, *cells] for one, cells in found]
    note = f"Measured: replay of answers drawn at temperature 1, {_questions(results)}, {_seeds(results)}."
    columns = ["draft vocabulary", "setting", *_shape_columns(results)]
    keys = [one.key for one in results.methods][: len(rows)]
    return StudyTable("drawn", "Temperature 1", note, columns, rows, 2, keys)


def _shape_columns(results: StudyResults) -> list[str]:
    return [f"{one.key}: {what}" for one in results.shapes for what in ("tokens a cycle", "share of full, %")]


def _by_shape(results: StudyResults, temperature: str) -> list[list[str]]:
    """Of every method accepted length and share with every shape."""
    found = [
        [one.at(shape.key, temperature=temperature) for shape in results.shapes] for one in results.methods
    ]
    return [[text for cell in cells for text in (length(cell), share(cell))] for cells in found]


def category_part(results: StudyResults) -> StudyTable:
    """Groups of questions down, the main methods across."""
    shape = main_shape(results)
    chosen = [one for one in main_methods(results) if one.family != "full"]
    full = next(one for one in results.methods if one.family == "full")
    rows = []
    for group in results.groups:
        cells = [share(one.at(shape, group.key), between=False) for one in chosen]
        mine = length(full.at(shape, group.key))
        rows.append([shown_group(group.key, group.kind), f"{group.questions:,}", mine, *cells])
    columns = ["questions", "number", "full head: tokens a cycle", *(one.label for one in chosen)]
    note = (
        f"Measured: {shape}, greedy, share of the full head's accepted length in %, {_seeds(results)}. One method a "
        "family: the setting that is predicted to be quickest, or keeps most if nothing is predicted."
    )
    return StudyTable("categories", "By category", note, columns, rows if len(rows) > 1 else [])


def rare_part(results: StudyResults) -> StudyTable:
    """Rare-token questions beside all: what static vocabularies lose there."""
    group = results.group(RARE)
    if group is None:
        return StudyTable("rare", "Rare data", "", [], [])
    shape = main_shape(results)
    keys = [RARE, *(one.key for one in results.groups if one.kind == "set" and one.key in group.sets)]
    keys += [one.key for one in results.groups if one.kind != "set" and one.key == "coding"]
    rows = []
    for one in results.methods:
        everything, cells = one.at(shape), [one.at(shape, key) for key in keys]
        texts = [share(cell, between=not at) for at, cell in enumerate(cells)]
        rows.append([one.label, share(everything), *texts, points(cells[0], everything)])
    names = [shown_group(EVERYTHING, "all"), *(shown_group(key, "set") for key in keys)]
    columns = ["draft vocabulary", *(f"{name}, %" for name in names), "rare less all, points"]
    note = (
        f"Measured: {shape}, greedy, share of the full head's accepted length in the same questions. Rare data: "
        f"{', '.join(group.sets)}; {group.questions:,} questions."
    )
    return StudyTable("rare", "Rare data", note, columns, rows, keys=[one.key for one in results.methods])


def speed_part(results: StudyResults) -> StudyTable:
    """Predicted tokens/s by column and shape, with the ratio to the full head's."""

    def speed(cell: Cell | None, column: str) -> float | None:
        return None if cell is None or column not in cell.predicted else cell.predicted[column].tokens_per_s

    places = [(column, shape.key) for column in results.columns for shape in results.shapes]
    full = next(one for one in results.methods if one.family == "full")
    rows = []
    for one in results.methods:
        row = [one.label]
        for column, shape in places:
            mine, whole = (speed(way.at(shape), column) for way in (one, full))
            ratio = f" ({mine / whole:.2f}×)" if mine is not None and whole else ""
            row.append(DASH if mine is None else f"{mine:,.{1 if mine >= 10 else 3}f}{ratio}")
        rows.append(row)
    columns = ["draft vocabulary", *(f"{COLUMN_NAMES[column]}: {shape}" for column, shape in places)]
    note = (
        "Predicted tokens/s of one request, greedy, from the measured accepted lengths of this study's small models; "
        "in brackets the ratio to the full head. Fixed trees are given the times of dynamic trees of as many levels "
        "and nodes. "
    )
    note += " ".join(
        f"{COLUMN_NAMES[column][:1].upper()}{COLUMN_NAMES[column][1:]}: {_COLUMN_NOTES[column]}."
        for column in results.columns
    )
    keys = [one.key for one in results.methods]
    return StudyTable("speed", "Predicted tokens/s", note, columns, rows if places else [], keys=keys)


def coverage_part(results: StudyResults) -> StudyTable:
    """Share of held-out tokens inside the static vocabularies."""
    covered = [one for one in results.methods if one.coverage]
    texts = results.coverage_texts
    rows = [[one.label, *(percent(one.coverage.get(text)) for text in texts)] for one in covered]
    note = (
        "Measured: share of tokens inside a static draft vocabulary, of the target's answers to training prompts (what "
        "VocabTrim counted, so not held out for it) and of held-out texts by source."
    )
    keys = [one.key for one in covered]
    return StudyTable("coverage", "Coverage", note, ["draft vocabulary", *texts], rows, keys=keys)


def checked_part(results: StudyResults) -> StudyTable:
    """The decoder itself beside plain decoding and the replay."""
    checked = results.checked
    if checked is None:
        return StudyTable("lossless", "Losslessness", "", [], [])
    rows = []
    for mode in checked.modes:
        counts = [mode.outputs, mode.identical, mode.near_tied, mode.faults, mode.not_judged]
        cycles = f"{mode.equal_cycles:,} of {mode.cycles:,} ({mode.compared:,} outputs)"
        rows.append([mode.mode, *(f"{count:,}" for count in counts), cycles if mode.cycles else DASH])
    columns = ["decoded", "outputs", "identical", "near-tied", "faults", "not judged", "cycles as replayed"]
    note = (
        f"Measured: the real decoder with every method on {checked.questions:,} questions ({checked.where}), its "
        "outputs beside plain decoding's, token by token. Near-tied: the target's own rounding decides between two "
        "tokens. The last column: cycles that commit as many tokens as the replay predicted, of outputs that begin as "
        "the replayed answers do."
    )
    return StudyTable("lossless", "Losslessness", note, columns, rows)


def decoded_part(results: StudyResults) -> StudyTable:
    """Accepted lengths of the decoder itself, the dynamic tree's among them."""
    title = "Accepted lengths of the decoder itself"
    checked = results.checked
    if checked is None:
        return StudyTable("decoded", title, "", [], [])
    modes, own = [mode.mode for mode in checked.modes], checked.settings
    found = [one for one in results.methods if one.key in checked.lengths]
    rows = []
    for one in found:
        lengths = checked.lengths[one.key]
        rows.append([one.label, *(f"{lengths[mode]:.2f}" if mode in lengths else DASH for mode in modes)])
    note = (
        f"Measured by decoding {checked.questions:,} questions: tokens that a cycle commits, mean over the first "
        f"{own.get('seeds', 1)} of the seeds. Dynamic tree: {own.get('tree_nodes')} nodes, "
        f"{own.get('tree_topk')} children a node, depth {own.get('tree_depth')}."
    )
    return StudyTable(
        "decoded", title, note, ["draft vocabulary", *modes], rows, keys=[one.key for one in found]
    )


def _questions(results: StudyResults) -> str:
    group = results.group(EVERYTHING)
    return "no questions" if group is None else f"{group.questions:,} questions of {', '.join(group.sets)}"


def _seeds(results: StudyResults) -> str:
    """How figures are joined over seeds."""
    count = len(results.seeds)
    return "one seed" if count == 1 else f"mean over {count} seeds ± their sample deviation"
