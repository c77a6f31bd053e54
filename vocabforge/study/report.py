"""Stage ``report``: results.json, tables, plots and one self-contained page of a study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.artifact import open_artifact, write_artifact
from ..core.console import console, say
from ..core.errors import ArtifactError
from ..evaluate.page import render_page
from .answers import KIND as ANSWERS
from .assembling import assemble
from .chosen import looks, main_methods
from .claim_looks import FASTER
from .config import StudyConfig
from .joined import EVERYTHING, GREEDY
from .layout import Layout
from .plots import Panel, plot_files, study_panels
from .report_inputs import read_inputs
from .results import RESULTS, StudyResults
from .table_parts import KINDS, Part, percent
from .tables import markdown, study_parts
from .terminal import study_tables
from .verdict import place, verdict

KIND = "study-report"
PAGE, TABLES, PLOTS = "report.html", "table.md", "plots"
_HEADING = 14  # characters of a line of a column's heading
_UNFOLDED = 24  # rows of a table beside the first that are shown at once
# Section of the page -> beginnings of its charts' keys.
_CHARTS = {
    "methods": ("share", "categories", "steps"),
    "speed": ("speed", "heads"),
}


@dataclass(frozen=True)
class Card:
    """A figure that stands out: ``good`` colours it, None leaves it plain."""

    what: str
    value: str
    note: str
    good: bool | None = None


@dataclass(frozen=True)
class Section:
    """A table of the page with its charts: rows with the keys of their methods (empty for others)."""

    part: Part
    panels: Sequence[Panel]
    shown: Sequence[tuple[Sequence[str], str]]
    folded: Sequence[tuple[Sequence[str], str]]


def run(config: StudyConfig, layout: Layout) -> None:
    """Write ``layout.report``, an artefact of kind ``study-report``, and print its main tables.

    ``results.json`` (:class:`~vocabforge.study.results.StudyResults`), ``table.md``, ``plots/*.svg``, ``report.html``.

    Raises:
        ArtifactError: no seed is replayed, or a replay is not one of these answers and methods.
        DataError: a file of another stage is damaged.
    """
    results = assemble(config, read_inputs(config, layout))
    write_report(results, config, layout)
    out = console()
    for table in study_tables(results):
        out.print(table)
    say(verdict(results))
    say(f"Report: {layout.report / PAGE}")


def write_report(
    results: StudyResults, config: StudyConfig, layout: Layout, panels: Sequence[Panel] | None = None
) -> None:
    """All files of the report at once, or none.

    Args:
        panels: charts, where they are made already.
    """
    panels = study_panels(results) if panels is None else panels
    meta = {"size": results.size, "seeds": results.seeds, "methods": len(results.methods)}
    with write_artifact(
        layout.report,
        KIND,
        meta,
        parents=_parents(layout, results.seeds),
        config=config.model_dump(mode="json"),
        overwrite=True,
    ) as folder:
        (folder / PLOTS).mkdir()
        (folder / RESULTS).write_text(results.model_dump_json() + "\n", "utf-8")
        (folder / TABLES).write_text(markdown(results), "utf-8")
        (folder / PAGE).write_text(render_study(results, panels), "utf-8")
        for name, svg in plot_files(panels).items():
            (folder / PLOTS / name).write_text(svg, "utf-8")


def _parents(layout: Layout, seeds: Sequence[int]) -> dict[str, str]:
    """Content hashes of what it was made from."""
    places = {
        "answers": layout.answers,
        **{f"replay of seed {seed}": layout.replayed(seed) for seed in seeds},
    }
    found = {}
    for role, path in places.items():
        try:
            found[role] = open_artifact(
                path, ANSWERS if role == "answers" else None, verify=False
            ).content_hash
        except ArtifactError:
            continue
    return found


def render_study(results: StudyResults, panels: Sequence[Panel] | None = None) -> str:
    """HTML text of the results; it loads nothing from anywhere."""
    return render_page(
        "study_report.html.j2",
        results=results,
        verdict=verdict(results),
        goal=results.goals[0],
        main_cards=_cards(results),
        sections=_sections(results, study_panels(results) if panels is None else panels),
        look=looks(results.methods),
        colours_of={KINDS[True]: "good", KINDS[False]: "bad", KINDS[None]: ""},
        split=lambda text: text.partition(" "),
        heading=_heading,
        config_text=json.dumps(results.config, indent=1, ensure_ascii=False),
    )


def _heading(column: str) -> str:
    """A column's heading in lines of a few words."""
    lines: list[str] = []
    for word in column.split(" "):
        if lines and not lines[-1].endswith((":", ",")) and len(lines[-1]) + len(word) < _HEADING:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _sections(results: StudyResults, panels: Sequence[Panel]) -> list[Section]:
    chosen = {one.key for one in main_methods(results)}
    found = []
    for part in study_parts(results):
        rows = list(zip(part.rows, part.keys or [""] * len(part.rows), strict=True))
        fold = bool(part.keys) and len(rows) > _UNFOLDED and part.key != "methods"
        shown = [(row, key) for row, key in rows if key in chosen] if fold else rows
        charts = [panel for panel in panels if panel.key.split("-")[0] in _CHARTS.get(part.key, ())]
        found.append(Section(part, charts, shown, rows if fold else []))
    return found


def _cards(results: StudyResults) -> list[Card]:
    """The goal's three figures, and whether the decoder is lossless."""
    goal, cards = results.goals[0], []
    best = results.method(goal.method)
    cell = None if best is None else best.at(goal.shape, EVERYTHING, GREEDY)
    if best is not None and cell is not None and cell.share.value is not None:
        kept, exact = cell.share, percent(best.exact)
        between = "" if kept.low is None or kept.high is None else f"{kept.low:.1%}–{kept.high:.1%}; "
        cards = [
            Card("Kept of the accepted length", f"{kept.value:.1%}", f"{between}{best.label}; {place(goal)}"),
            Card("Exact logits", exact, f"of V, {best.exact * results.vocab_size:,.0f} tokens a draft step"),
        ]
        if goal.claim.value is not None:
            reached = goal.claim.value >= FASTER
            note = f"predicted tokens/s over a static 32,768, 8B shape; goal {FASTER:.2f}×"
            cards.append(Card("Faster than static", f"{goal.claim.value:.2f}×", note, reached))
    else:
        said = {True: "reached", False: "not reached", None: "not judged"}[goal.claim.held]
        cards = [Card("Goal", said, f"{place(goal)}: {goal.claim.found}", goal.claim.held)]
    if results.checked is not None:
        outputs = sum(mode.outputs for mode in results.checked.modes)
        same = sum(mode.identical for mode in results.checked.modes)
        faults = results.checked.faults
        tied = sum(mode.near_tied for mode in results.checked.modes)
        note = f"{same:,} of {outputs:,} outputs are plain decoding's, {tied} near-tied; {faults} faults"
        lossless = 0 < same + tied == outputs
        cards.append(Card("Lossless", "yes" if lossless else "no", note, lossless))
    return cards
