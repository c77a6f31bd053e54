"""What a benchmark is: rows of data, and the questions read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# What scores the answers beside speed; None: nothing does.
Scorer = Literal["gsm8k", "human-eval"]


@dataclass(frozen=True)
class Source:
    """Where a question file is published; ``about`` names repository and commit for messages.

    Attributes:
        sha256, unpacked: hash of what the address gives, and of the same file unpacked (None if it comes unpacked).
    """

    url: str
    sha256: str
    unpacked: str | None = None
    about: str = ""


@dataclass(frozen=True)
class BenchmarkRow:
    """What is known about a named benchmark.

    Attributes:
        files: names that its question file may have below a data folder; the first that is found is read. Empty if
            it is made here.
        sources: tried in order; the address ends with the name of one of ``files``.
        max_new_tokens: its own limit for one turn.
    """

    files: tuple[str, ...]
    format: str
    sources: tuple[Source, ...]
    max_new_tokens: int
    scorer: Scorer | None
    about: str
    questions: int


@dataclass(frozen=True)
class Question:
    """One benchmark question.

    Attributes:
        turns: the user's messages in order. reference: reference answers by turn.
        task_id: the benchmark's own name of the question if that is a text (``HumanEval/0``).
        system: system message of its conversation.
        check: what the scorer needs (``HumanEval``: prompt, entry_point, test; GSM8K: answer).
    """

    question_id: int
    category: str
    turns: tuple[str, ...]
    reference: tuple[str, ...] | None = None
    task_id: str | None = None
    system: str | None = None
    check: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The benchmark's own name of the question, else its number."""
        return str(self.question_id) if self.task_id is None else self.task_id


@dataclass(frozen=True)
class Benchmark:
    """Questions of one file and what identifies them.

    Attributes:
        path: None if the questions are made in memory. sha256: of that file, or of the questions.
        max_new_tokens: the benchmark's own limit for one turn.
        questions, of: those that are asked, in file order; how many the file has.
        published: whether the file is the published one, byte for byte; None if none is known.
    """

    name: str
    path: Path | None
    sha256: str
    max_new_tokens: int
    questions: tuple[Question, ...]
    format: str = "spec-bench"
    scorer: Scorer | None = None
    published: bool | None = None
    of: int = 0

    @property
    def file(self) -> str:
        """Name of the file read."""
        return "made here" if self.path is None else self.path.name


def asked_sha256(questions: Iterable[Question]) -> str:
    """Hash of what is asked: ids, system messages and turns, in order. Two equal ones were asked the same."""
    rows = [[question.question_id, question.system, list(question.turns)] for question in questions]
    return hashlib.sha256(json.dumps(rows).encode("ascii")).hexdigest()
