"""The tables of a study, as Markdown for docs/performance.md and as HTML by the page."""

from __future__ import annotations

from ..core.console import markdown_table
from .chosen import main_methods, main_shape, static_of
from .joined import EVERYTHING, GREEDY, MACHINE, ROOFLINE, SHAPE
from .names import COLUMN_NAMES, shown_group
from .results import RARE, MethodFigures, StudyResults
from .table_parts import DASH, Part, length, percent, points, seeds_words, share
from .tables_checked import checked_part, claim_part, coverage_part, decoded_part, goal_part, tuned_part
from .verdict import verdict

_COLUMN_NOTES = {
    MACHINE: "this study's models, all parts of a cycle measured",
    SHAPE: "head, drafter's layer and target measured at the larger shape with random weights; siblings have nothing "
    "in common, so that their shortlists overlap as little as they can",
    ROOFLINE: "arithmetic, nothing of it measured: bytes of each head over the bandwidth, layer and target given",
}


def study_parts(results: StudyResults) -> list[Part]:
    """All tables with rows, in the order of the report."""
    found = [
        main_part(results),
        goal_part(results),
        claim_part(results),
        speed_part(results),
        tuned_part(results),
        category_part(results),
        rare_part(results),
        drawn_part(results),
        coverage_part(results),
        checked_part(results),
        decoded_part(results),
    ]
    return [part for part in found if part.rows]


def markdown(results: StudyResults) -> str:
    """All tables as Markdown, the verdict first."""
    pieces = [verdict(results)]
    for part in study_parts(results):
        table = markdown_table(part.columns, part.rows, text=part.text)
        pieces += [f"### {part.title}", part.note, "\n".join(table)]
    if results.missing:
        pieces += ["### What is missing", "\n".join(f"- {one}" for one in results.missing)]
    pieces += ["Command: `" + results.command + "`"]
    return "\n\n".join(pieces) + "\n"


def main_part(results: StudyResults) -> Part:
    """Every method with every shape, greedy, the headline's questions."""
    columns = ["draft vocabulary", "setting", "exact logits (of V)", *_shape_columns(results)]
    rows = []
    for one in results.methods:
        scored = f"{one.exact * results.vocab_size:,.0f} ({percent(one.exact)})"
        rows.append([one.name, one.setting, scored, *_shape_cells(results, one, GREEDY)])
    note = (
        f"Measured: replay of the target's own greedy answers, {_questions(results)}, {seeds_words(results)}. Exact "
        "logits: mean over draft steps (a low-rank head has none); in trees a router opens clusters for every node. "
        "Share: of the full head's accepted length with the same seed; square brackets: 95% interval over questions."
    )
    keys = [one.key for one in results.methods]
    return Part("methods", "Accepted length of all draft vocabularies", note, columns, rows, 2, keys)


def drawn_part(results: StudyResults) -> Part:
    """Temperature 1."""
    temperature = next((one for one in results.temperatures if one != GREEDY), None)
    rows = []
    if temperature is not None:
        rows = [[one.name, one.setting, *_shape_cells(results, one, temperature)] for one in results.methods]
    note = (
        f"Measured: replay of answers drawn at temperature 1, {_questions(results)}, {seeds_words(results)}."
    )
    columns = ["draft vocabulary", "setting", *_shape_columns(results)]
    return Part(
        "drawn", "Temperature 1", note, columns, rows, 2, [one.key for one in results.methods][: len(rows)]
    )


def _shape_columns(results: StudyResults) -> list[str]:
    names = [shape.key for shape in results.shapes]
    return [column for name in names for column in (f"{name}: tokens a cycle", f"{name}: share of full, %")]


def _shape_cells(results: StudyResults, one: MethodFigures, temperature: str) -> list[str]:
    cells = [one.at(shape.key, temperature=temperature) for shape in results.shapes]
    return [text for cell in cells for text in (length(cell), share(cell))]


def category_part(results: StudyResults) -> Part:
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
        f"Measured: {shape}, greedy, share of the full head's accepted length in %, {seeds_words(results)}. One method "
        "a family: static ones of 32,768 tokens; of others the goal's method, else the setting that is predicted to be "
        "quickest, or keeps most where nothing is predicted."
    )
    return Part("categories", "By category", note, columns, rows if len(rows) > 1 else [])


def rare_part(results: StudyResults) -> Part:
    """Rare-token questions beside all: what static vocabularies lose there."""
    group = results.group(RARE)
    if group is None:
        return Part("rare", "Rare data", "", [], [])
    shape = main_shape(results)
    keys = [RARE, *(one.key for one in results.groups if one.kind == "set" and one.key in group.sets)]
    keys += [one.key for one in results.groups if one.kind != "set" and one.key == "coding"]
    rows = []
    for one in results.methods:
        everything, cells = one.at(shape), [one.at(shape, key) for key in keys]
        texts = [share(cell, between=not at) for at, cell in enumerate(cells)]
        rows.append([one.label, share(everything), *texts, points(cells[0], everything)])
    names = [shown_group(key, "set") for key in keys]
    columns = [
        "draft vocabulary",
        f"{shown_group(EVERYTHING, 'all')}, %",
        *(f"{name}, %" for name in names),
        "rare less all, points",
    ]
    note = (
        f"Measured: {shape}, greedy, share of the full head's accepted length in the same questions. Rare data: "
        f"{', '.join(group.sets)}; {group.questions:,} questions."
    )
    return Part(
        "rare", "Rare data", note, columns, rows, keys=[one.key for one in results.methods][: len(rows)]
    )


def speed_part(results: StudyResults) -> Part:
    """Predicted tokens a second by column and shape, with the ratio to the goal's static vocabulary."""
    found = [(column, shape.key) for column in results.columns for shape in results.shapes]
    places = [at for at in found if any(_speed(one, *at) is not None for one in results.methods)]
    statics = {at: static_of(results, at[1], at[0]) for at in places}
    rows = []
    for one in results.methods:
        row = [one.label]
        for at in places:
            static = statics[at]
            mine, theirs = _speed(one, *at), None if static is None else _speed(static, *at)
            ratio = f" ({mine / theirs:.2f}×)" if mine is not None and theirs else ""
            row.append(DASH if mine is None else f"{mine:,.{1 if mine >= 10 else 3}f}{ratio}")
        rows.append(row)
    columns = ["draft vocabulary", *(f"{COLUMN_NAMES[column]}: {shape}" for column, shape in places)]
    note = (
        "Predicted tokens/s of one request, greedy, from the measured accepted lengths of this study's small models; "
        "in brackets the ratio to the faster one of FR-Spec and VocabTrim of 32,768 tokens. Fixed trees are given the "
        "times of dynamic trees of as many levels and nodes. "
    )
    note += " ".join(
        f"{COLUMN_NAMES[column][:1].upper()}{COLUMN_NAMES[column][1:]}: {_COLUMN_NOTES[column]}."
        for column in results.columns
    )
    keys = [one.key for one in results.methods]
    return Part("speed", "Predicted tokens/s", note, columns, rows if places else [], keys=keys)


def _speed(method: MethodFigures, column: str, shape: str) -> float | None:
    cell = method.at(shape)
    found = None if cell is None else cell.predicted.get(column)
    return None if found is None else found.tokens_per_s


def _questions(results: StudyResults) -> str:
    group = results.group(EVERYTHING)
    return "no questions" if group is None else f"{group.questions:,} questions of {', '.join(group.sets)}"
