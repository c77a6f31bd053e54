"""The site's page of measurements: a chart per evaluation, and a table of all figures in docs/results/*.json.

`make docs` puts it in docs/dashboard.md (mkdocs_hooks.py). docs/assets/dashboard.js sorts and filters the table.
`python .ci/dashboard.py` draws the README's chart from the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from vocabforge.evaluate.reports.plots import Bar, bar_rows
from vocabforge.evaluate.reports.tables import figure_rows, interval, number
from vocabforge.evaluate.results.schema import Figure, MethodResults, Results, read_results

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
CHART = RESULTS.parent / "plots" / "speedup.svg"
COLUMNS = ("target", "method", "drafter", "draft vocabulary", "benchmark", "task", "questions")
COLUMNS += ("accepted length", "tokens/s", "speed-up", "machine", "date", "command", "data")
# column -> what its menu chooses at first; empty: all
MENUS = {"target": "", "benchmark": "", "task": "overall", "machine": ""}


def dashboard_html(folder: Path = RESULTS) -> str:
    """Return charts and table of the ``results.json`` files in a folder.

    Raises:
        DataError: a file is damaged or violates the schema; names the file.
    """
    measured = {file: read_results(file) for file in sorted(folder.glob("*.json"))}
    charts = [_chart(file.stem, results) for file, results in measured.items() if results.baseline]
    head = [
        f'<th data-menu="{MENUS[name]}">{name}</th>' if name in MENUS else f"<th>{name}</th>"
        for name in COLUMNS
    ]
    rows = [row for file, results in measured.items() for row in _rows(f"{folder.name}/{file.name}", results)]
    return "\n".join(
        [
            '<div class="dashboard" data-search-exclude>',
            f'<div class="charts">{"".join(charts)}</div>',
            '<div class="measurements"><table class="figures">',
            f"<thead><tr>{''.join(head)}</tr></thead>",
            "<tbody>",
            *rows,
            "</tbody></table></div>",
            '<script src="assets/dashboard.js"></script>',
            "</div>",
        ]
    )


def _chart(name: str, results: Results) -> str:
    bars = []
    for index, method in enumerate(results.methods):
        speedup = method.summary.overall.speedup
        value = [(index, speedup.value or 0.0)]
        bars.append(Bar(method.name, number(speedup.value), value, speedup.low, speedup.high))
    title = f"<b>{escape(results.target.name)}</b> on {escape(results.benchmark.name)}"
    svg = bar_rows(f"speed-up-{name}", "speed-up over plain decoding", bars)
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>"


def _rows(link: str, results: Results) -> Iterator[str]:
    """A row for each method and task; the last four cells are those of the evaluation."""
    evaluation = [
        _machine(results),
        _cell(results.created[:10]),
        f"<td><code>{escape(results.command)}</code></td>",
        f'<td><a href="{escape(link)}">JSON</a></td>',
    ]
    for task, figures in figure_rows(results):
        for method, group in zip(results.methods, figures, strict=True):
            cells = [
                _cell(results.target.name),
                _cell(method.name, method.description),
                _cell(results.parents.get(f"drafter {method.name}", "–")[:8]),
                _vocabulary(method),
                _cell(results.benchmark.name),
                _cell(task.removeprefix("· ")),
                _cell(f"{group.questions:,}", key=group.questions),
                _figure(group.accepted_length),
                _figure(group.tokens_per_s, 1),
                _figure(group.speedup),
                *evaluation,
            ]
            yield f"<tr>{''.join(cells)}</tr>"


def _cell(text: str, under: str = "", key: float | None = None) -> str:
    """A cell with small text under it; ``key`` is what the column is sorted by, if it is not the text."""
    sorted_by = "" if key is None else f' data-key="{key}"'
    small = f"<small>{escape(under)}</small>" if under else ""
    return f"<td{sorted_by}><span>{escape(text)}</span>{small}</td>"


def _figure(figure: Figure, digits: int = 2) -> str:
    between = interval(figure, digits)
    return _cell(number(figure.value, digits), f"[{between}]" if between else "", figure.value)


def _vocabulary(method: MethodResults) -> str:
    if method.vocabulary is None:
        return _cell("–")
    facts = method.vocabulary
    return _cell(f"{facts.size:,}", f"{facts.kind}, of {facts.of:,}", facts.size)


def _machine(results: Results) -> str:
    facts = results.environment
    software = f"{facts.get('threads')} threads, {results.target.dtype}, torch {facts.get('torch')}"
    return _cell(str(facts.get("gpu") or facts.get("processor")), software)


_WIDTH, _BARS, _UNIT, _ROW = 720, 300, 200, 24  # pixels: chart, left end and length of 1.0, height of a row
_LOOK = """
  text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #16202c; }
  .ground { fill: #ffffff; } .title { font-weight: 600; } .note { fill: #586474; } .end { text-anchor: end; }
  .bar { fill: #2563eb; } .slower { fill: #7b8794; } .line { stroke: #16202c; stroke-width: 1.4; }
  .plain { stroke: #586474; stroke-dasharray: 2 3; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e3e6f2; } .ground { fill: #14161d; } .note { fill: #aab1c9; } .bar { fill: #6d93f5; }
    .slower { fill: #59626e; } .line { stroke: #e3e6f2; } .plain { stroke: #aab1c9; }
  }"""


def speedups_svg(folder: Path = RESULTS) -> str:
    """Return the speed-up of every method over plain decoding as one SVG picture, with light and dark colours."""
    rows: list[str] = []
    y = 0
    for file in sorted(folder.glob("*.json"), reverse=True):
        results = read_results(file)
        asked = f"{results.methods[0].summary.overall.questions} prompts of {escape(results.benchmark.name)}"
        y += 30
        rows.append(
            f'<text class="title" x="16" y="{y}">{escape(results.target.name)}'
            f'<tspan class="note" font-weight="400"> · {asked}</tspan></text>'
        )
        top = y + 8
        for method in results.methods[1:]:
            speedup = method.summary.overall.speedup
            size = "" if method.vocabulary is None else f" · {method.vocabulary.size:,} tokens"
            y += _ROW
            rows += [
                f'<text class="end" x="{_BARS - 10}" y="{y}">{escape(method.name)}'
                f'<tspan class="note">{size}</tspan></text>',
                f'<rect class="{"bar" if speedup.value > 1 else "slower"}" x="{_BARS}" y="{y - 13}" '
                f'width="{_UNIT * speedup.value:.1f}" height="16" rx="2"/>',
            ]
            first, last = (_BARS + _UNIT * end for end in (speedup.low, speedup.high))
            rows.append(f'<path class="line" d="M{first:.1f} {y - 5}H{last:.1f}"/>')
            rows.append(f'<text class="title" x="{last + 8:.1f}" y="{y}">{number(speedup.value)}</text>')
        rows.append(f'<path class="plain" d="M{_BARS + _UNIT} {top}V{y + 6}"/>')
        y += 8
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 30}" width="{_WIDTH}" '
        f'height="{y + 30}" role="img">',
        "<title>Speed-up over plain decoding, with 95% intervals</title>",
        f"<style>{_LOOK}\n</style>",
        f'<rect class="ground" width="{_WIDTH}" height="{y + 30}" rx="8"/>',
    ]
    note = f'<text class="note" x="{_BARS}" y="{y + 16}">tokens/s over plain decoding (dotted: 1), 95% intervals</text>'
    return "\n".join([*head, *rows, note, "</svg>", ""])


if __name__ == "__main__":
    CHART.write_text(speedups_svg(), "utf-8")
