"""Formats of question files, and how a file's format is told by its first row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError, UsageError, did_you_mean
from ...core.extension import resolve
from .rows import first_row, no_question
from .types import Question, Scorer


@dataclass(frozen=True)
class Format:
    """What is known about a format.

    Attributes:
        reader: ``module:attr`` of ``(path) -> list of questions``.
        keys: what each of its rows holds.
        max_new_tokens: limit for one turn of a file that is no named benchmark.
        scorer: what scores its answers.
    """

    reader: str
    keys: tuple[str, ...]
    max_new_tokens: int
    scorer: Scorer | None


_HERE = "vocabforge.evaluate.benchmarks"
# name -> format; the first whose keys a file's first row holds is taken.
FORMATS: dict[str, Format] = {
    "spec-bench": Format(
        f"{_HERE}.read_spec_bench:read_questions", ("question_id", "category", "turns"), 1024, None
    ),
    "human-eval": Format(
        f"{_HERE}.read_human_eval:read_human_eval",
        ("task_id", "prompt", "entry_point", "test"),
        512,
        "human-eval",
    ),
    "gsm8k": Format(f"{_HERE}.read_gsm8k:read_gsm8k", ("question", "answer"), 512, "gsm8k"),
    "chat": Format(f"{_HERE}.read_chats:read_chats", ("conversations or messages",), 1024, None),
}


def read_format(name: str, path: Path) -> list[Question]:
    """The questions of a file in a named format.

    Raises:
        UsageError: no such format.
        DataError: see its reader.
    """
    reader = resolve({key: row.reader for key, row in FORMATS.items()}, name, "format of question files")
    return reader(path)


def check_format(name: str) -> None:
    """Refuse a format that there is not.

    Raises:
        UsageError: naming those that there are.
    """
    if name not in FORMATS:
        raise UsageError(
            "there is no format of question files of this name",
            got=name,
            expected=", ".join(FORMATS),
            source="--benchmark-format",
            remedy=did_you_mean(name, FORMATS),
        )


def detect_format(path: Path) -> str:
    """The format's name by what the first row holds.

    Raises:
        DataError: unreadable, empty, no JSON object, or a row of none of the formats.
    """
    row = first_row(path)
    if row is None:
        raise no_question(path)
    for name in FORMATS:
        if _is_of(name, row, path):
            return name
    raise DataError(
        "the format of the question file is not known",
        got=f"keys of its first row: {', '.join(map(str, row)) or 'none'}",
        expected="; or ".join(f"{', '.join(row.keys)} ({name})" for name, row in FORMATS.items()),
        source=path,
        remedy="name it with --benchmark-format, or write the file anew in one of these formats",
    )


def _is_of(name: str, row: Mapping[str, Any], path: Path) -> bool:
    if name == "chat":
        return _is_chat(row, path)
    if name == "spec-bench":  # a first row that lacks its category is one of these, and wrong
        return row.keys() >= {"question_id", "turns"}
    holds = row.keys() >= set(FORMATS[name].keys)
    # Other questions and answers are a conversation.
    return holds and (name != "gsm8k" or (isinstance(row["answer"], str) and "####" in row["answer"]))


def _is_chat(row: Mapping[str, Any], path: Path) -> bool:
    from ...corpus.document import SourceOptions
    from ...corpus.reading import Problems
    from ...corpus.rows import row_document

    if row.keys() & {"messages", "conversations", "conversation"}:
        return True
    document = row_document(dict(row), path, 1, SourceOptions(), Problems(shown=0))
    return document is not None and document.messages is not None
