"""Open evaluations for a comparison, check that they are comparable, and list what readers should know."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.artifact import Artifact, open_artifact
from ...core.errors import ArtifactError, MismatchError, UsageError
from ...decode.request import SamplingParams
from ..reports.tables import distribution_line
from ..results.answers import MethodRows, read_method
from ..results.schema import ARTIFACT_KIND, RESULTS, MethodResults, Results, read_results

# Separates run and method in a name such as "A:eagle3".
SEPARATOR = ":"
# Facts of the environment that affect the time of a pass, and possibly the last bit of a logit.
MACHINE = ("processor", "cpu_count", "gpu", "device", "threads", "torch", "cuda")
_SHOWN = 44


@dataclass(frozen=True)
class EvaluationRun:
    """An evaluation artefact under a label."""

    label: str
    folder: Path
    results: Results
    content_hash: str

    def name_of(self, method: MethodResults) -> str:
        """Return ``RUN:METHOD``."""
        return f"{self.label}{SEPARATOR}{method.name}"

    def rows(self, method: MethodResults) -> list[MethodRows]:
        """Read the method's answer and detail rows, run by run.

        Raises:
            DataError: a row cannot be read.
        """
        return read_method(self.folder, method.answers, method.details)


def open_runs(given: Sequence[str]) -> tuple[EvaluationRun, ...]:
    """Open evaluations given as ``DIR`` or ``LABEL=DIR``.

    Raises:
        ArtifactError: the folder is not an evaluation, was modified, or its results name other files.
        UsageError: a label or folder is repeated, or a label is invalid.
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
    """Check that the results name equally many answer and detail files of this folder for each method."""
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
    """Split ``LABEL=DIR``, unless the text is an existing path."""
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
    """Return the given labels; for other runs the folder's name, with its parent's if needed to be unique."""
    for depth in (1, 2):
        labels = [
            label or "/".join(path.resolve().parts[-depth:]).replace(SEPARATOR, "-") for label, path in named
        ]
        if len(set(labels)) == len(labels):
            return labels
    double = next(label for label in labels if labels.count(label) > 1)
    raise UsageError("two runs would have the same label", got=double, remedy="give each its own: LABEL=DIR")


def deciding_facts(runs: Sequence[EvaluationRun]) -> list[dict[str, str]]:
    """Return the facts of each run that must be equal for a comparison: name -> text.

    A target is identified by the hash of its weights, or by its name if a run has no hash. A tokenizer is
    omitted if a run did not record its hash.
    """
    results = [run.results for run in runs]
    hashed = all(one.target.fingerprint for one in results)
    known_tokenizer = all(one.target.tokenizer for one in results)
    transforms = dict.fromkeys(name for one in results for name in one.settings.sampling)
    found = []
    for one in results:
        facts = {
            "target": _digest(one.target.fingerprint) if hashed else one.target.name,
            "target dtype": one.target.dtype,
            "questions asked": f"{one.benchmark.questions} ({_digest(one.benchmark.asked)})",
            "prompt format": one.settings.prompt_format,
            "system message": repr(one.settings.system) if one.settings.system else "none",
            "max new tokens": str(one.settings.max_new_tokens),
        }
        if known_tokenizer:
            facts["tokenizer and template"] = _digest(one.target.tokenizer)
        for name in transforms:
            # Runs from before a transform existed did not use it.
            value = one.settings.sampling.get(name, getattr(SamplingParams(), name, None))
            facts[name.replace("_", " ")] = "none" if value is None else f"{value:g}"
        found.append(facts)
    return found


def refuse_incomparable(runs: Sequence[EvaluationRun]) -> dict[str, str]:
    """Return the deciding facts, which must be equal in all runs.

    Raises:
        MismatchError: they differ; the message has a table with a row per fact and a column per run.
    """
    facts = deciding_facts(runs)
    wrong = [name for name in facts[0] if len({one[name] for one in facts}) > 1]
    if not wrong:
        return facts[0]
    lines = [["", *(run.label for run in runs)]]
    lines += [[name, *(_short(one[name]) for one in facts)] for name in wrong]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    table = "".join(
        "\n    " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    alike = "evaluate them again alike; or look at each alone: vocabforge inspect RUN"
    same = "evaluate both with the same --benchmark and --limit"
    raise MismatchError(
        "these runs cannot be compared",
        got=table,
        expected="runs that differ only in methods, seeds, repeats and machine",
        remedy=same if wrong == ["questions asked"] else alike,
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _digest(value: str | None) -> str:
    return "no hash" if value is None else value[:12]


def machine_facts(results: Results) -> dict[str, str]:
    """Return the facts that determine the machine's speed."""
    return {name: str(results.environment.get(name)) for name in MACHINE}


def is_greedy(results: Results) -> bool:
    """Return whether decoding was greedy."""
    return results.settings.sampling.get("temperature", 0.0) == 0


def same_streams(first: Results, second: Results) -> bool:
    """Return whether both runs drew the same random numbers: greedy, or equal seeds."""
    return is_greedy(first) or set(first.settings.seeds) == set(second.settings.seeds)


def run_notes(runs: Sequence[EvaluationRun], home: EvaluationRun, questions: int) -> list[str]:
    """Return notes on relevant differences between the runs, one sentence each.

    Args:
        home: the run that the others are compared with.
        questions: number of compared questions.
    """
    results = [run.results for run in runs]
    found = [line for run in runs if run is not home for line in _differences(home, run)]
    asked = max(one.benchmark.questions for one in results)
    if questions < asked:
        found.append(
            f"{asked - questions} of {asked} questions were not answered by every method of every run; no figure here "
            "includes them"
        )
    if not all(one.target.fingerprint for one in results):
        found.append("not every run recorded the hash of its target: the target is compared by name alone")
    if not all(one.target.tokenizer for one in results):
        found.append("not every run recorded its tokenizer: whether it is the same is not known")
    for run in runs:
        for method in run.results.methods:
            outputs = method.summary.outputs
            if line := distribution_line(method):
                found.append(
                    f"{run.label}: {line}; figures of lossless methods are not comparable with its own"
                )
            if outputs and outputs.faults:
                found.append(
                    f"{run.name_of(method)} is not plain decoding: {outputs.faults} of {outputs.compared} outputs "
                    "differ by a fault; its figures are not those of the same output"
                )
    return found


def _differences(home: EvaluationRun, other: EvaluationRun) -> list[str]:
    sides, found = (home.results, other.results), []
    machines = [machine_facts(one) for one in sides]
    if apart := _parted(*machines):
        found.append(
            f"{home.label} and {other.label} were measured on different machines ({apart}): times are not compared"
        )
    how = [{"passes": one.run_facts.get("passes", "unknown"), "VocabForge": one.vocabforge} for one in sides]
    if apart := _parted(*how):
        found.append(f"{home.label} and {other.label} also differ in {apart}: this may affect times")
    if not same_streams(*sides):
        found.append(
            f"{home.label} and {other.label} drew different random numbers (other seeds): comparable in distribution, "
            "but not paired; the intervals are wider for it"
        )
    return found


def _parted(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {one[name]} / {other[name]}" for name in one if one[name] != other[name])
