"""Parts of a vocabulary study: what their manifests say of them, and the tables that ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .parts import View, ViewRequest, facts_table, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact


def view(artifact: Artifact, request: ViewRequest) -> View:
    """Numbers and names of the manifest."""
    return View(dict(artifact.meta), [facts_table(scalars(artifact.meta))])


def report_view(artifact: Artifact, request: ViewRequest) -> View:
    """One method a family; the report itself is a page."""
    from ...study.report.results import RESULTS, read_study
    from ...study.report.tables import methods_table

    results = read_study(artifact.file(RESULTS))
    return View(
        results.model_dump(mode="json"), [facts_table(scalars(artifact.meta)), methods_table(results)]
    )
