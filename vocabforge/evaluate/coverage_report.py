"""One self-contained HTML page of a coverage study, and its charts as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .coverage_results import HELD_OUT
from .page import render_page
from .plots import MARKER_NAMES, METHOD_COLOURS, Line, dot_chart, line_chart
from .svg_file import standalone

Results = Mapping[str, Any]
_SIZE_AXIS = "size of the draft vocabulary"


@dataclass(frozen=True)
class Chart:
    """A figure: file name without ending, headings, legend (colour, name, hint), SVG for the page and as a file."""

    key: str
    title: str
    note: str
    legend: list[tuple[int, str, str]]
    svg: str
    file: str


def report_files(results: Results) -> dict[str, str]:
    """Path -> text: ``coverage.html``, which loads nothing from anywhere, and each chart as ``plots/NAME.svg``."""
    charts, ceilings = coverage_charts(results), ceiling_charts(results)
    texts = results["texts"]
    counted = texts[0]
    page = render_page(
        "coverage_report.html.j2",
        results=results,
        texts=texts,
        counted=counted,
        carrying=next(row for row in counted["carrying"] if row["share"] == 0.95),
        heldout=next((text for text in texts if text["role"] == HELD_OUT and not text["domain"]), None),
        charts=charts,
        ceiling_charts=ceilings,
    )
    return {"coverage.html": page} | {f"plots/{chart.key}.svg": chart.file for chart in [*charts, *ceilings]}


def coverage_charts(results: Results) -> list[Chart]:
    """Coverage over sizes, the same as what is missed, and the draft vocabularies by text."""
    texts, sizes = results["texts"], results["curve_sizes"]
    first = max(16, sizes[-1] >> 10)
    kept = [index for index, size in enumerate(sizes) if size >= first] or list(range(len(sizes)))
    lines, missed = [], []
    for index, text in enumerate(texts):
        dashed, colour = text["role"] == HELD_OUT, text_colour(index)
        values = [text["curve"][at] for at in kept]
        x, marked = [sizes[at] for at in kept], colour >= METHOD_COLOURS
        lines.append(Line(x, [100 * value for value in values], colour, text["name"], dashed, marked))
        missed.append(Line(x, [100 * (1 - value) for value in values], colour, text["name"], dashed, marked))
    charts = [
        _lines(
            "coverage",
            "Coverage",
            "Ranking from all counted tokens; forced ids first",
            lines,
            "tokens inside, %",
        ),
        _lines(
            "missed",
            "What is missed",
            "The same curves from the other side, on a logarithmic axis",
            missed,
            "tokens outside, %",
            log_y=True,
        ),
    ]
    vocabs = results["vocabularies"]
    if vocabs:
        rows = [text["name"] for text in texts]
        series = {
            number: [None if (share := vocab["coverage"][row]) is None else 100 * share for row in rows]
            for number, vocab in enumerate(vocabs, start=1)
        }
        names = {
            number: f"{vocab['name']} ({vocab['size']:,})" for number, vocab in enumerate(vocabs, start=1)
        }
        label = "tokens inside, %"
        charts.append(
            Chart(
                "vocabularies",
                "Draft vocabularies",
                "Coverage of each text",
                [(number, name, "") for number, name in names.items()],
                dot_chart("voc", label, rows, series),
                standalone(dot_chart("voc-file", label, rows, series, names=names)),
            )
        )
    return charts


def text_colour(index: int) -> int:
    """Grey for all that was counted, then the six colours again and again, with another marker each time."""
    again, place = divmod(index - 1, METHOD_COLOURS - 1)
    return 0 if index == 0 else 1 + place + METHOD_COLOURS * again


def ceiling_charts(results: Results) -> list[Chart]:
    """One chart a domain: oracle ceiling, static ceiling and greedy ceiling of the counted ranking."""
    ceilings = results["ceilings"]
    if ceilings is None:
        return []
    sizes = ceilings["sizes"]
    charts = []
    for number, (name, domain) in enumerate(ceilings["domains"].items(), start=1):
        curves = [
            ("oracle: best k ids at each position", domain["oracle"], 3, False),
            ("static: the counted ranking", domain["static"], 1, False),
            ("greedy: its share of the target's argmax", domain["greedy"], 1, True),
        ]
        lines = [
            Line(sizes, [None if value is None else 100 * value for value in curve], colour, label, dashed)
            for label, curve, colour, dashed in curves
        ]
        lines += [
            Line([vocab["size"]], [100 * vocab["static"]], 4 + at, f"static: {label}", marked=True)
            for at, (label, vocab) in enumerate(domain["vocabularies"].items())
        ]
        note = f"{domain['positions']:,} positions"
        charts.append(_lines(f"ceiling-{number}", name, note, lines, "best acceptance, %"))
    return charts


def _hint(line: Line) -> str:
    """How a curve differs from others of its colour."""
    shape = MARKER_NAMES[line.colour // METHOD_COLOURS % len(MARKER_NAMES)] if line.marked else ""
    return ", ".join(filter(None, ("dashed" if line.dashed else "", shape)))


def _lines(
    key: str, title: str, note: str, lines: Sequence[Line], label: str, *, log_y: bool = False
) -> Chart:
    axes = (_SIZE_AXIS, label)
    ceiling = None if log_y else 101.0
    return Chart(
        key,
        title,
        note,
        [(line.colour, line.label, _hint(line)) for line in lines],
        line_chart(key, axes, lines, log_y=log_y, ceiling=ceiling),
        standalone(line_chart(f"{key}-file", axes, lines, log_y=log_y, ceiling=ceiling, legend=True)),
    )
