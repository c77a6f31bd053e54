"""Evaluations to be compared: opened, verified, each with a label of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import MANIFEST, Artifact, open_artifact
from ...core.errors import ArtifactError, UsageError
from ..answers import MethodRows, read_method
from ..results import ARTIFACT_KIND, RESULTS, MethodResults, Results, read_results

# Separates run and method in a name such as "A:eagle3".
SEPARATOR = ":"
TRAINING_LOG = "metrics.jsonl"


@dataclass(frozen=True)
class EvaluationRun:
    """One evaluation artefact under a name.

    Attributes:
        label: how tables call it; no other run's.
        content_hash: of the artefact.
    """

    label: str
    folder: Path
    results: Results
    content_hash: str

    def method(self, name: str) -> MethodResults:
        """The results of a method that the run has."""
        return next(method for method in self.results.methods if method.name == name)

    def rows(self, method: str) -> list[MethodRows]:
        """The method's answer and detail rows, run by run.

        Raises:
            DataError: a row that cannot be read.
        """
        found = self.method(method)
        return read_method(self.folder, found.answers, found.details)


def open_runs(given: Sequence[str]) -> tuple[EvaluationRun, ...]:
    """Open evaluations given as ``DIR`` or ``LABEL=DIR``.

    Raises:
        ArtifactError: no evaluation there, or one that was changed, or whose results name other files.
        UsageError: a label or a folder twice, or a label that cannot be one.
    """
    named = [_split(text) for text in given]
    _refuse_twice([path for _, path in named])
    labels = _labels(named)
    runs = []
    for label, (_, path) in zip(labels, named, strict=True):
        artifact = _open(path)
        results = read_results(path)
        _check(results, artifact)
        runs.append(EvaluationRun(label, path, results, artifact.content_hash))
    return tuple(runs)


def _check(results: Results, artifact: Artifact) -> None:
    """Results name the rows of the same folder, as many for each method; nothing else is read."""
    runs = {(len(method.answers), len(method.details)) for method in results.methods}
    strange = [
        file
        for method in results.methods
        for file in (*method.answers, *method.details)
        if file not in artifact.manifest["files"]
    ]
    names = [method.name for method in results.methods]
    if len(runs) != 1 or len({*runs.pop()}) != 1 or strange or len(set(names)) < len(names):
        raise ArtifactError(
            "the results do not fit the evaluation that they lie in",
            got=strange[0] if strange else "rows of a method are missing, or a method stands twice",
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


def _refuse_twice(paths: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in paths:
        real = path.resolve()
        if real in seen:
            raise UsageError(
                "an evaluation stands twice", got=f"{seen[real]} and {path}", remedy="name each folder once"
            )
        seen[real] = path


def _labels(named: Sequence[tuple[str | None, Path]]) -> list[str]:
    """Labels as given; other runs take their folder's name, with as many parents as tell them apart."""
    given = [label for label, _ in named if label is not None]
    double = next((label for label in given if given.count(label) > 1), None)
    if double is not None:
        raise UsageError(
            "two runs would have the same label", got=double, remedy="give each one of its own: LABEL=DIR"
        )
    open_paths = [path.resolve() for label, path in named if label is None]
    names = iter(_distinct(open_paths, taken=set(given)))
    return [next(names) if label is None else label for label, _ in named]


def _distinct(paths: Sequence[Path], taken: set[str]) -> list[str]:
    """The shortest tails of the paths that differ from each other and from what is taken."""
    depths = dict.fromkeys(paths, 1)
    while True:
        names = ["/".join(path.parts[-depths[path] :]).replace(SEPARATOR, "-") for path in paths]
        unclear = [
            path
            for path, name in zip(paths, names, strict=True)
            if (names.count(name) > 1 or name in taken) and depths[path] < len(path.parts)
        ]
        if not unclear:
            return names
        for path in unclear:
            depths[path] += 1


def _open(path: Path) -> Artifact:
    """A verified evaluation; says what else the folder is."""
    training = path if path.is_dir() else path.parent
    if not (path / MANIFEST).is_file():
        partial = path.with_name(f"{path.name}.partial")
        if path.name == RESULTS and (path.parent / MANIFEST).is_file():
            raise ArtifactError(
                "a file of an evaluation was named", got=path, remedy=f"name its folder: {path.parent}"
            )
        if (training / TRAINING_LOG).is_file():
            raise ArtifactError(
                "this is a training run, not an evaluation",
                got=path,
                expected="the output folder of `vocabforge eval`",
                remedy=f"its own report: vocabforge report-training {training}",
            )
        if partial.is_dir() and not path.exists():
            raise ArtifactError(
                "this evaluation was interrupted and has no figures yet",
                got=partial,
                remedy="run its `vocabforge eval` command again: it goes on at the next question",
            )
    return open_artifact(path, ARTIFACT_KIND)
