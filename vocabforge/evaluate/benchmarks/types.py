"""Data types of benchmarks: rows of the table, and questions read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """Published location of a question file."""

    url: str
    sha256: str  # of the published file
    unpacked: str | None = None  # hash of the decompressed file; None if it is published uncompressed
    about: str = ""  # repository and commit, for messages


@dataclass(frozen=True)
class BenchmarkRow:
    """Description of a named benchmark."""

    # Possible names of the question file in a data folder; the first that exists is read. Empty if the questions
    # are generated.
    files: tuple[str, ...]
    format: str
    # Tried in order; each address ends with the name of one of ``files``. Empty if no single file can be fetched.
    sources: tuple[Source, ...] = ()
    max_new_tokens: int | None = None  # the benchmark's limit per turn; None: that of the format
    about: str = ""  # its origin, if there are no sources


@dataclass(frozen=True)
class Question:
    """A benchmark question."""

    question_id: int
    category: str
    turns: tuple[str, ...]
    task_id: str | None = None  # the benchmark's name of the question if it is a string (``HumanEval/0``)
    system: str | None = None  # system message of the conversation

    @property
    def name(self) -> str:
        """The benchmark's own name of the question, or its number."""
        return str(self.question_id) if self.task_id is None else self.task_id


@dataclass(frozen=True)
class Benchmark:
    """Questions of a file and their identity."""

    name: str
    path: Path | None  # None if the questions are generated
    sha256: str  # of the file, or of the generated questions
    max_new_tokens: int  # the benchmark's limit per turn
    questions: tuple[Question, ...]  # the selected ones, in file order
    format: str = "spec-bench"
    # Whether the file is byte for byte the published one; None: no hash is known.
    published: bool | None = None
    of: int = 0  # number of questions in the file

    @property
    def file(self) -> str:
        """Name of the file."""
        return "part of VocabForge" if self.path is None else self.path.name


def asked_sha256(questions: Iterable[Question]) -> str:
    """Return the hash of ids, system messages and turns in order; equal hashes mean equal requests."""
    rows = [[question.question_id, question.system, list(question.turns)] for question in questions]
    return hashlib.sha256(json.dumps(rows).encode("ascii")).hexdigest()
