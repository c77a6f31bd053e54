"""Evaluations and coverage studies: the tables that ended them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...core.errors import ArtifactError
from ...core.files import read_json
from .parts import View, ViewRequest, facts_table, rows_table, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def evaluation_view(artifact: Artifact, request: ViewRequest) -> View:
    """Settings, figures of each method, by task, and where outputs part."""
    from ...evaluate.reports.tables import category_table, divergence_lines, overview_table
    from ...evaluate.results.schema import read_results

    results = read_results(artifact.file("results.json"))
    tables: list[Any] = [facts_table(results.run_facts), overview_table(results), category_table(results)]
    return View(results.model_dump(mode="json"), [*tables, *map(Text, divergence_lines(results))])


def coverage_view(artifact: Artifact, request: ViewRequest) -> View:
    """Coverage by size and text, draft vocabularies, ceilings with a target."""
    from ...evaluate.reports.coverage import ceiling_table, coverage_table, summary_lines, vocabulary_table

    results = read_json(artifact.file("coverage.json"), "results")
    try:
        tables: list[Any] = [facts_table(results["facts"]), coverage_table(results)]
        tables += [vocabulary_table(results)] if results["vocabularies"] else []
        tables += [ceiling_table(results)] if results["ceilings"] else []
        return View(dict(results), [*tables, *map(Text, summary_lines(results))])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(
            "the results are not those of this version",
            got=repr(error),
            source=artifact.path / "coverage.json",
            remedy="use the version that wrote it",
        ) from error


def responses_view(artifact: Artifact, request: ViewRequest) -> View:
    """Settings of the target's responses, what became of rows and answers, and the first rows."""
    meta = artifact.meta
    with open(artifact.file("responses.jsonl"), encoding="utf-8") as lines:
        first = [json.loads(line) for line in islice(lines, request.top)]
    rows = [
        {"row": number, "turns": len(row["messages"]), "last answer": _last_words(row)}
        for number, row in enumerate(first, start=1)
    ]
    counts = {**scalars(meta), "finish_reasons": meta["finish_reasons"]}
    shown: list[Any] = [
        facts_table({name.replace("_", " "): value for name, value in facts.items()}, title)
        for title, facts in (("Generation", meta["generation"]), ("Rows and answers", counts))
    ]
    return View({**dict(meta), "first": first}, [*shown, rows_table("First rows", rows)])


def _last_words(row: Mapping[str, Any]) -> str:
    text = " ".join(str(row["messages"][-1]["content"]).split())
    return text if len(text) <= 60 else text[:59] + "…"
