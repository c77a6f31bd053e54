"""Evaluations and coverage studies: the tables that ended them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...core.errors import ArtifactError
from ...core.files import read_json
from .parts import Request, View, facts_table, scalars, table_of

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def evaluation_view(artifact: Artifact, request: Request) -> View:
    """Settings, figures of each method, by task, and where outputs part."""
    from ...evaluate.results import read_results
    from ...evaluate.terminal import category_table, divergence_lines, overview_table

    results = read_results(artifact.file("results.json"))
    tables: list[Any] = [facts_table(results.run_facts), overview_table(results), category_table(results)]
    return View(results.model_dump(mode="json"), [*tables, *map(Text, divergence_lines(results))])


def coverage_view(artifact: Artifact, request: Request) -> View:
    """Coverage by size and text, draft vocabularies, ceilings with a target."""
    from ...evaluate.coverage_terminal import ceiling_table, coverage_table, summary_lines, vocabulary_table

    def shown(results: Mapping[str, Any]) -> list[Any]:
        tables: list[Any] = [facts_table(results["facts"]), coverage_table(results)]
        tables += [vocabulary_table(results)] if results["vocabularies"] else []
        tables += [ceiling_table(results)] if results["ceilings"] else []
        return [*tables, *map(Text, summary_lines(results))]

    return _view(artifact, "coverage.json", shown)


def responses_view(artifact: Artifact, request: Request) -> View:
    """Settings of the target's responses, what became of rows and answers, and the first rows."""
    meta = artifact.meta
    counts = scalars(meta)
    with open(artifact.file("responses.jsonl"), encoding="utf-8") as lines:
        first = [json.loads(line) for line in islice(lines, request.top)]
    rows = [
        (str(number), str(len(row["messages"])), _last_words(row))
        for number, row in enumerate(first, start=1)
    ]
    shown: list[Any] = [
        facts_table(_for_people(meta["generation"]), "Generation"),
        facts_table(_for_people({**counts, "finish_reasons": meta["finish_reasons"]}), "Rows and answers"),
        table_of("First rows", ("row", "turns", "last answer<"), rows),
    ]
    return View({**dict(meta), "first": first}, shown)


def _for_people(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Names for people: spaces for underscores."""
    return {name.replace("_", " "): value for name, value in facts.items()}


def _last_words(row: Mapping[str, Any]) -> str:
    text = " ".join(str(row["messages"][-1]["content"]).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _view(artifact: Artifact, name: str, shown: Callable[[Mapping[str, Any]], list[Any]]) -> View:
    results = read_json(artifact.file(name), "results")
    try:
        return View(dict(results), shown(results))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArtifactError(
            "the results are not those of this version",
            got=repr(error),
            source=artifact.path / name,
            remedy="use the version that wrote it",
        ) from error
