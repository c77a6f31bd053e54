"""Evaluations and coverage studies: the tables that ended them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...core.errors import ArtifactError
from ...core.files import read_json
from .parts import Request, View, facts_table

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def evaluation_view(artifact: Artifact, request: Request) -> View:
    """Settings, figures of each method, by task, and where outputs part."""
    from ...evaluate.terminal import category_table, divergence_lines, overview_table

    def shown(results: Mapping[str, Any]) -> list[Any]:
        tables = [facts_table(results["run_facts"]), overview_table(results), category_table(results)]
        return [*tables, *map(Text, divergence_lines(results))]

    return _view(artifact, "results.json", shown)


def coverage_view(artifact: Artifact, request: Request) -> View:
    """Coverage by size and text, draft vocabularies, ceilings with a target."""
    from ...evaluate.coverage_terminal import ceiling_table, coverage_table, summary_lines, vocabulary_table

    def shown(results: Mapping[str, Any]) -> list[Any]:
        tables: list[Any] = [facts_table(results["facts"]), coverage_table(results)]
        tables += [vocabulary_table(results)] if results["vocabularies"] else []
        tables += [ceiling_table(results)] if results["ceilings"] else []
        return [*tables, *map(Text, summary_lines(results))]

    return _view(artifact, "coverage.json", shown)


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
