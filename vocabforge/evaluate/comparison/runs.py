"""Evaluations to be compared: opened, verified, each with its own label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import MANIFEST, Artifact, open_artifact
from ...core.errors import ArtifactError, UsageError
from ..results.answers import MethodRows, read_method
from ..results.schema import ARTIFACT_KIND, RESULTS, Results, read_results

# Separates run and method in a name such as "A:eagle3".
SEPARATOR = ":"
TRAINING_LOG = "metrics.jsonl"


@dataclass(frozen=True)
class EvaluationRun:
    """One evaluation artefact under a label.

    Attributes:
        content_hash: of the artefact.
    """

    label: str
    folder: Path
    results: Results
    content_hash: str

    def rows(self, method: str) -> list[MethodRows]:
        """The method's answer and detail rows, run by run.

        Raises:
            DataError: a row that cannot be read.
        """
        found = next(one for one in self.results.methods if one.name == method)
        return read_method(self.folder, found.answers, found.details)


def open_runs(given: Sequence[str]) -> tuple[EvaluationRun, ...]:
    """Open evaluations given as ``DIR`` or ``LABEL=DIR``.

    Raises:
        ArtifactError: no evaluation there, or one that was changed, or whose results name other files.
        UsageError: a label or a folder twice, or a label that cannot be one.
    """
    named = [_split(text) for text in given]
    seen: dict[Path, Path] = {}
    for _, path in named:
        if (first := seen.setdefault(path.resolve(), path)) is not path:
            raise UsageError(
                "an evaluation is given twice", got=f"{first} and {path}", remedy="name each folder once"
            )
    runs = []
    for label, (_, path) in zip(_labels(named), named, strict=True):
        artifact = _open(path)
        results = read_results(path)
        _check(results, artifact)
        runs.append(EvaluationRun(label, path, results, artifact.content_hash))
    return tuple(runs)


def _check(results: Results, artifact: Artifact) -> None:
    """Results name the rows of the same folder, as many for each method; nothing else is read."""
    counts = {len(files) for method in results.methods for files in (method.answers, method.details)}
    strange = [
        file
        for method in results.methods
        for file in (*method.answers, *method.details)
        if file not in artifact.manifest["files"]
    ]
    names = [method.name for method in results.methods]
    if len(counts) != 1 or strange or len(set(names)) < len(names):
        raise ArtifactError(
            "the results do not fit their evaluation",
            got=strange[0] if strange else "rows of a method are missing, or a method is named twice",
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


def _open(path: Path) -> Artifact:
    """A verified evaluation; says what else the folder is."""
    training = path if path.is_dir() else path.parent
    if not (path / MANIFEST).is_file():
        partial = path.with_name(f"{path.name}.partial")
        if path.name == RESULTS and (path.parent / MANIFEST).is_file():
            raise ArtifactError(
                "this is a file of an evaluation", got=path, remedy=f"name its folder: {path.parent}"
            )
        if (training / TRAINING_LOG).is_file():
            raise ArtifactError(
                "this is a training run, not an evaluation",
                got=path,
                expected="the output folder of `vocabforge eval`",
                remedy=f"for its own report: vocabforge report-training {training}",
            )
        if partial.is_dir() and not path.exists():
            raise ArtifactError(
                "this evaluation was interrupted and has no figures yet",
                got=partial,
                remedy="run its `vocabforge eval` command again: it resumes at the next question",
            )
    return open_artifact(path, ARTIFACT_KIND)
