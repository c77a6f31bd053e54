"""Views of evaluations, coverage studies, responses and vocabulary studies."""

from __future__ import annotations

import json
from itertools import islice
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...core.files import read_json
from .parts import View, ViewRequest, content_tables, facts_table

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def evaluation_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return settings, figures of each method, tasks, and the places where outputs diverge."""
    from ...evaluate.reports.tables import category_table, divergence_lines, overview_table
    from ...evaluate.results.schema import read_results

    results = read_results(artifact.file("results.json"))
    tables: list[Any] = [facts_table(results.run_facts), overview_table(results), category_table(results)]
    return View(results.model_dump(mode="json"), [*tables, *map(Text, divergence_lines(results))])


def coverage_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return coverage by size and text, draft vocabularies, and ceilings with a target."""
    from ...evaluate.reports.coverage import coverage_tables, summary_lines

    results = read_json(artifact.file("coverage.json"), "results")
    lines = map(Text, summary_lines(results))
    return View(dict(results), [facts_table(results["facts"]), *coverage_tables(results), *lines])


def responses_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return settings of the target's responses, counts of rows and answers, and the first rows."""
    meta = artifact.meta
    with open(artifact.file("responses.jsonl"), encoding="utf-8") as lines:
        first = [json.loads(line) for line in islice(lines, request.top)]
    rows = [
        {
            "row": number,
            "turns": len(row["messages"]),
            "last answer": shorten(str(row["messages"][-1]["content"]), 60, placeholder="…"),
        }
        for number, row in enumerate(first, start=1)
    ]
    return View({**meta, "first": first}, content_tables({**meta, "first": rows}))
