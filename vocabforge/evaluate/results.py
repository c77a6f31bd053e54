"""``results.json``: every figure of an evaluation, with a schema and a version.

``results.schema.json`` beside this file is the same schema in JSON, for readers that are not Python. After a change
here, write it anew (a test holds the two equal):

    python -c "from vocabforge.evaluate import results; print(results.schema_text(), end='')" \
        > vocabforge/evaluate/results.schema.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from ..core.records import read_versioned
from .results_figures import (
    DepthFigures,
    DivergenceRow,
    Figure,
    GroupFigures,
    Judgement,
    Outputs,
    Quality,
    RunFigures,
    Strict,
    Summary,
    Vocabulary,
)

__all__ = [
    "ARTIFACT_KIND",
    "RESULTS",
    "SCHEMA_VERSION",
    "BenchmarkFacts",
    "DepthFigures",
    "DivergenceRow",
    "FailureRow",
    "Figure",
    "GroupFigures",
    "Judgement",
    "MethodResults",
    "Outputs",
    "Quality",
    "Results",
    "RunFigures",
    "Settings",
    "Strict",
    "Summary",
    "Target",
    "Vocabulary",
    "read_results",
    "schema_text",
]

SCHEMA_VERSION = 3
_OLDER = (2,)  # had no verifiers: all was lossless
RESULTS = "results.json"
ARTIFACT_KIND = "evaluation"


class MethodResults(Strict):
    """One way of decoding.

    Attributes:
        verifier: that was asked for by name; None: by the drafts, and lossless.
        lossless: whether its outputs have the law that the target alone would give them.
        answers, details: its files, one a run, relative to the folder.
    """

    name: str
    description: str
    head: str | None
    vocabulary: Vocabulary | None
    verifier: str | None = None
    lossless: bool = True
    answers: list[str]
    details: list[str]
    summary: Summary


class FailureRow(Strict):
    """A question that one method could not answer; it is left out of every method's figures.

    Attributes:
        run: number of the run. turn: from 0.
        kind: name of the error. reason: its message.
    """

    question_id: int
    category: str
    method: str
    run: int
    turn: int
    kind: str
    reason: str


class Target(Strict):
    """The model. ``fingerprint``: hash of its weights' files; ``tokenizer``: of its tokenizer and template."""

    name: str
    fingerprint: str | None
    tokenizer: str | None
    dtype: str


class BenchmarkFacts(Strict):
    """What was asked.

    Attributes:
        sha256: hash of the file. published: whether it is the published one.
        asked: hash of the questions asked, in order (ids, system messages and turns).
        questions: how many were asked. of: how many the file has.
    """

    name: str
    file: str
    format: str
    sha256: str
    published: bool | None
    asked: str
    questions: int
    of: int


class Settings(Strict):
    """``RunSettings`` as values."""

    max_new_tokens: int
    sampling: dict[str, float]
    warmup: int
    prompt_format: Literal["chat", "raw"]
    system: str | None
    seeds: list[int]
    repeats: int


class Results(Strict):
    """The whole file.

    Attributes:
        created: UTC, ISO 8601.
        answered: questions that every method answered in every run.
        resumed: how often the run was interrupted and went on.
        run_facts: settings in words. parents: hashes of what was measured, by role.
        time_parts: the parts of ``time_s`` that some method has.
        methods: plain decoding first.
    """

    schema_version: Literal[2, 3] = 3
    vocabforge: str
    created: str
    target: Target
    benchmark: BenchmarkFacts
    answered: int
    resumed: int
    settings: Settings
    parents: dict[str, str]
    run_facts: dict[str, str]
    environment: dict[str, Any]
    command: str
    time_parts: list[str]
    methods: list[MethodResults]
    failures: list[FailureRow]


def read_results(path: Path) -> Results:
    """Read ``results.json`` from its path or from an evaluation's folder.

    Raises:
        DataError: missing file, another version, or a value that the schema does not allow.
    """
    file = path / RESULTS if path.is_dir() else path
    return read_versioned(
        file,
        Results,
        SCHEMA_VERSION,
        what="results file",
        remedy="evaluate again, or read it with the version that wrote it",
        older=_OLDER,
    )


def schema_text() -> str:
    """The schema of ``results.json`` as the text of ``results.schema.json``."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Results.model_json_schema(mode="serialization"),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
