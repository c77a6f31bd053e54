"""Evaluations to be compared: opened, verified, each with its own label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import Artifact, open_artifact
from ...core.errors import ArtifactError, UsageError
from ..results.answers import MethodRows, read_method
from ..results.schema import ARTIFACT_KIND, RESULTS, MethodResults, Results, read_results

# Separates run and method in a name such as "A:eagle3".
SEPARATOR = ":"


@dataclass(frozen=True)
class EvaluationRun:
    """One evaluation artefact under a label."""

    label: str
    folder: Path
    results: Results
    content_hash: str

    def name_of(self, method: MethodResults) -> str:
        """``RUN:METHOD``."""
        return f"{self.label}{SEPARATOR}{method.name}"

    def rows(self, method: MethodResults) -> list[MethodRows]:
        """The method's answer and detail rows, run by run.

        Raises:
            DataError: a row that cannot be read.
        """
        return read_method(self.folder, method.answers, method.details)


def open_runs(given: Sequence[str]) -> tuple[EvaluationRun, ...]:
    """Open evaluations given as ``DIR`` or ``LABEL=DIR``.

    Raises:
        ArtifactError: no evaluation there, or one that was changed, or whose results name other files.
        UsageError: a label or a folder twice, or a label that cannot be one.
    """
    named = [_split(text) for text in given]
    folders = [path.resolve() for _, path in named]
    if len(set(folders)) < len(folders):
        twice = next(path for path in folders if folders.count(path) > 1)
        raise UsageError("an evaluation is given twice", got=twice, remedy="name each folder once")
    runs = []
    for label, (_, path) in zip(_labels(named), named, strict=True):
        artifact = open_artifact(path, ARTIFACT_KIND)
        results = read_results(path)
        _check(results, artifact)
        runs.append(EvaluationRun(label, path, results, artifact.content_hash))
    return tuple(runs)


def _check(results: Results, artifact: Artifact) -> None:
    """Results name the rows of the same folder, as many for each method; nothing else is read."""
    files = [(*method.answers, *method.details) for method in results.methods]
    counts = {len(part) for method in results.methods for part in (method.answers, method.details)}
    names = {method.name for method in results.methods}
    known = all(file in artifact.manifest["files"] for some in files for file in some)
    if len(counts) != 1 or not known or len(names) < len(results.methods):
        raise ArtifactError(
            "the results do not fit their evaluation",
            expected="for each method the same number of answer and detail files of this folder",
            source=artifact.path / RESULTS,
            remedy="evaluate again",
        )


def _split(text: str) -> tuple[str | None, Path]:
    """``LABEL=DIR``; what exists as a path is never split."""
    label, separator, folder = text.partition("=")
    if not separator or os.path.exists(text):
        return None, Path(text)
    if not label or SEPARATOR in label or not label.isprintable():
        raise UsageError(
            "this cannot be a run's label",
            got=repr(label),
            expected=f"LABEL=DIR, the label without {SEPARATOR!r}, on one line",
            source=repr(text),
        )
    return label, Path(folder)


def _labels(named: Sequence[tuple[str | None, Path]]) -> list[str]:
    """Labels as given; other runs take their folder's name, with its parent's if that is not enough."""
    for depth in (1, 2):
        labels = [
            label or "/".join(path.resolve().parts[-depth:]).replace(SEPARATOR, "-") for label, path in named
        ]
        if len(set(labels)) == len(labels):
            return labels
    double = next(label for label in labels if labels.count(label) > 1)
    raise UsageError("two runs would have the same label", got=double, remedy="give each its own: LABEL=DIR")
