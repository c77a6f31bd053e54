"""Benchmarks are data: a table of known ones, and a strict reader of the Spec-Bench question format."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import DataError, UsageError
from ...core.files import sha256_file
from .types import Benchmark, BenchmarkRow, Question, Source

DATA_VARIABLE = "VOCABFORGE_DATA"

# The two-turn categories that Spec-Bench takes over from MT-bench and also reports as one task.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


# name -> row; adding a benchmark in this format is a row.
BENCHMARKS: dict[str, BenchmarkRow] = {
    "spec-bench": BenchmarkRow(
        files=("spec_bench/question.jsonl",),
        format="spec-bench",
        sources=(
            Source(
                "",
                "",
                about="data/spec_bench/question.jsonl of the repository hemingkx/Spec-Bench",
            ),
        ),
        max_new_tokens=1024,
        scorer=None,
        about="480 prompts of six tasks",
    ),
}
_DEFAULT_MAX_NEW_TOKENS = 1024


def load_benchmark(name_or_path: str, limit: int | None = None) -> Benchmark:
    """Read a benchmark by its table name or by the path of a JSONL file in Spec-Bench format.

    Args:
        name_or_path: a row of ``BENCHMARKS``, or a file.
        limit: keep this many questions, evenly spread over the file so that every category is met.

    Raises:
        UsageError: neither a known name nor a file; or ``limit`` is not positive.
        DataError: the named benchmark's file is absent, or a row is wrong.
    """
    if limit is not None and limit < 1:
        raise UsageError("the limit must be at least 1", got=limit, source="--limit")
    row = BENCHMARKS.get(name_or_path)
    path = _find(name_or_path, row) if row else Path(name_or_path)
    if row is None and not path.is_file():
        close = difflib.get_close_matches(name_or_path, BENCHMARKS, n=1)
        raise UsageError(
            "there is no benchmark of this name and no such file",
            got=name_or_path,
            expected=f"{', '.join(BENCHMARKS)}, or the path of a .jsonl file",
            source="--benchmark",
            remedy=f"did you mean {close[0]}?" if close else "check the path",
        )
    questions = read_questions(path)
    if limit is not None:
        questions = spread(questions, limit)
    maximum = row.max_new_tokens if row else _DEFAULT_MAX_NEW_TOKENS
    return Benchmark(name_or_path if row else path.stem, path, sha256_file(path), maximum, tuple(questions))


def _find(name: str, row: BenchmarkRow) -> Path:
    folders = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
    candidates = [folder / row.files[0] for folder in [*folders, Path("data")]]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise DataError(
        f"the questions of the benchmark {name} are not on this machine",
        expected=" or ".join(str(candidate) for candidate in candidates),
        source=f"{DATA_VARIABLE}={os.environ.get(DATA_VARIABLE, '(not set)')}",
        remedy=f"put {row.sources[0].about} at ./data/{row.files[0]}, or under the folder that {DATA_VARIABLE} names",
    )


def spread(questions: Sequence[Question], count: int) -> list[Question]:
    """``count`` questions at even distances, first one included; all of them if there are fewer."""
    if count >= len(questions):
        return list(questions)
    return [questions[index * len(questions) // count] for index in range(count)]


def read_questions(path: Path) -> list[Question]:
    """Read a JSONL file of ``{"question_id", "category", "turns"[, "reference"]}``; other keys are ignored.

    Raises:
        DataError: unreadable file, bad JSON, a missing or mistyped key, an id given twice (with file:line),
            or no question at all.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("cannot read the question file", got=error.strerror, source=path) from error
    questions: list[Question] = []
    first_line: dict[int, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        source = f"{path}:{number}"
        question = _parse(line, source)
        if question.question_id in first_line:
            raise DataError(
                "a question id stands twice",
                got=question.question_id,
                expected=f"ids that differ (first seen at line {first_line[question.question_id]})",
                source=source,
            )
        first_line[question.question_id] = number
        questions.append(question)
    if not questions:
        raise DataError("the question file holds no question", source=path)
    return questions


def _parse(line: bytes, source: str) -> Question:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError("a question is not UTF-8 text", got=error, source=source) from error
    except json.JSONDecodeError as error:
        raise DataError(
            "a question is not valid JSON",
            got=f"{error.msg} at column {error.colno}",
            source=source,
            remedy="the file may be truncated; fetch or make it again",
        ) from error
    if not isinstance(row, Mapping):
        raise DataError("a question is not a JSON object", got=type(row).__name__, source=source)
    for key in ("question_id", "category", "turns"):
        if key not in row:
            raise DataError("a question lacks a key", got=sorted(row), expected=key, source=source)
    reference = row.get("reference")
    return Question(
        _typed(row, "question_id", int, source),
        _typed(row, "category", str, source),
        _texts(row, "turns", source),
        None if reference is None else _references(reference),
    )


def _typed(row: Mapping[str, Any], key: str, kind: type, source: str) -> Any:
    value = row[key]
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise DataError(f"{key} has the wrong type", got=repr(value), expected=kind.__name__, source=source)
    return value


def _texts(row: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = row[key]
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise DataError(
            f"{key} has the wrong type",
            got=repr(value)[:80],
            expected="a list of non-empty texts",
            source=source,
        )
    return tuple(value)


def _references(value: Any) -> tuple[str, ...]:
    """References as texts; they are carried along, never scored here, so any JSON value will do."""
    entries = value if isinstance(value, list) else [value]
    return tuple(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
