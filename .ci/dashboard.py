"""The site's page of measurements: a chart per evaluation, and a table of all figures in docs/results/*.json.

`make docs` puts it in docs/dashboard.md (mkdocs_hooks.py). docs/assets/dashboard.js sorts and filters the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from vocabforge.evaluate.reports.plots import Bar, bar_rows
from vocabforge.evaluate.reports.tables import figure_rows, interval, number
from vocabforge.evaluate.results.schema import Figure, MethodResults, Results, read_results

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
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
        bars.append(Bar(index, method.name, number(speedup.value), speedup.value, speedup.low, speedup.high))
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
