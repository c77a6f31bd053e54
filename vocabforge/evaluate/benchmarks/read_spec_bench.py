"""Questions in Spec-Bench's format, which is MT-bench's: ``question_id``, ``category``, ``turns``, ``reference``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from .rows import Row, Seen, iter_rows, no_question, text_of, value_of, whole
from .types import Question


def read_questions(path: Path) -> list[Question]:
    """Read rows of ``{"question_id", "category", "turns"[, "reference"]}``; other keys are ignored.

    Raises:
        DataError: unreadable file, bad JSON, a missing or mistyped key, an id given twice (with file:line),
            or no question at all.
    """
    questions: list[Question] = []
    seen = Seen()
    for source, row in iter_rows(path):
        question = question_of(row, source)
        seen.add(question.question_id, source)
        questions.append(question)
    if not questions:
        raise no_question(path)
    return questions


def question_of(row: Row, source: str) -> Question:
    """One row.

    Raises:
        DataError: a missing or mistyped key.
    """
    reference = row.get("reference")
    return Question(
        _number(row, source),
        _category(row, source),
        _turns(row, source),
        None if reference is None else _references(reference),
    )


def _number(row: Row, source: str) -> int:
    value = value_of(row, "question_id", source)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError("question_id has the wrong type", got=repr(value), expected="int", source=source)
    if not -(2**63) <= value < 2**63:
        raise DataError(
            "question_id is no number of 64 bits",
            got=str(value)[:40],
            expected="a number from -2^63 to 2^63 - 1",
            source=source,
        )
    return value


def _category(row: Row, source: str) -> str:
    category = text_of(row, "category", source)
    if not category.isprintable():
        raise DataError(
            "category cannot be printed",
            got=repr(category)[:80],
            expected="a name on one line, without control characters",
            source=source,
        )
    return category


def _turns(row: Row, source: str) -> tuple[str, ...]:
    value = value_of(row, "turns", source)
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise DataError(
            "turns has the wrong type",
            got=repr(value)[:80],
            expected="a list of non-empty texts",
            source=source,
        )
    return tuple(whole(text, "a turn", source) for text in value)


def _references(value: Any) -> tuple[str, ...]:
    """References as texts; they are carried along, never scored here, so any JSON value will do."""
    entries = value if isinstance(value, list) else [value]
    return tuple(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
