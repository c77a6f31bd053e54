"""One self-contained HTML page of an evaluation: headline figures, charts, tables, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..decode.drafting_counts import phrase_of
from .benchmarks import MT_BENCH
from .page import render_page
from .plots import bar_chart, depth_chart, dot_chart, histogram_chart
from .summary import MT_BENCH_TASK, OVERALL

Results = Mapping[str, Any]


def render_report(results: Results) -> str:
    """HTML text of the results (see ``evaluation.py`` for their keys); loads nothing from anywhere."""
    methods = results["methods"]
    return render_page(
        "report.html.j2",
        results=results,
        methods=methods,
        best=headline_method(methods),
        baseline=methods[0],
        rows=row_keys(results),
        cell=_cell,
        counted=phrase_of,
        charts=_charts(results),
    )


def headline_method(methods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The method with the largest overall speed-up among those that are not the baseline."""
    others = methods[1:] or methods
    return max(others, key=lambda method: method["summary"][OVERALL]["speedup"] or 0.0)


def row_keys(results: Results) -> list[tuple[str, str, str]]:
    """Rows of tables and charts as (section, key, shown name): overall, tasks, the categories of MT-bench."""
    summary = results["methods"][0]["summary"]
    keys = [(OVERALL, "", OVERALL)]
    for task in summary["tasks"]:
        keys.append(("tasks", task, task))
        if task == MT_BENCH_TASK:
            keys += [("categories", name, f"· {name}") for name in summary["categories"] if name in MT_BENCH]
    return keys


def _cell(method: Mapping[str, Any], key: tuple[str, str, str], figure: str) -> float | None:
    section, name, _ = key
    group = method["summary"][section]
    return (group if section == OVERALL else group[name])[figure]


def _charts(results: Results) -> dict[str, str]:
    methods = results["methods"]
    keys = row_keys(results)
    rows = [shown for _, _, shown in keys]
    drafting = range(1, len(methods))

    def lines(figure: str, indices: Sequence[int]) -> dict[int, list[float | None]]:
        return {index: [_cell(methods[index], key, figure) for key in keys] for index in indices}

    charts = {
        "tokens_per_s": bar_chart(
            "tps",
            "tokens per second, mean over questions",
            [method["name"] for method in methods],
            [method["summary"][OVERALL]["tokens_per_s"] for method in methods],
        )
    }
    if len(methods) == 1:
        return charts
    histograms = {index: methods[index]["summary"]["accept_length_histogram"] for index in drafting}
    depths = {
        index: [row["reached"] or 0.0 for row in methods[index]["summary"]["depths"]] for index in drafting
    }
    charts["speedup"] = dot_chart(
        "spd", "times plain decoding", rows, lines("speedup", drafting), reference=1.0, from_zero=True
    )
    charts["accepted"] = dot_chart(
        "acc", "tokens per verification step", rows, lines("mean_accepted_length", drafting), reference=1.0
    )
    charts["speed_by_task"] = dot_chart(
        "sbt", "tokens per second", rows, lines("tokens_per_s", range(len(methods))), from_zero=True
    )
    charts["histogram"] = histogram_chart("his", histograms)
    if any(depths.values()):
        charts["depth"] = depth_chart("dep", {index: values for index, values in depths.items() if values})
    return charts
