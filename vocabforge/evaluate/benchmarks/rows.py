"""Read rows of question files: JSON lines, a JSON list or Parquet, optionally compressed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...core.errors import DataError
from ...core.files import parse_json
from ...corpus.sources.bytes import ByteSpan
from ...corpus.sources.inputs import split_suffix
from ...corpus.sources.parquet import damaged_table, opened_parquet

Row = Mapping[str, Any]

MAX_BYTES = 256 << 20
"""Maximum decompressed size of a question file: a few KiB can decompress to many GiB."""
_BATCH_ROWS = 64


def iter_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield (``file:number``, row) for each row, numbered by line, or by row in lists and tables.

    Raises:
        DataError: the file is unreadable, damaged, longer than ``MAX_BYTES``, not UTF-8 or not JSON, or a row
            is not an object (with its place).
        VocabForgeError: a package for this file format is missing.
    """
    kind, _ = split_suffix(path)
    if kind == ".parquet":
        for number, table_row in enumerate(_table_rows(path), start=1):
            yield f"{path}:{number}", table_row
        return
    content = _content(path)
    if kind == ".json" and content.lstrip()[:1] == b"[":
        for number, value in enumerate(_parsed(content, str(path)), start=1):
            yield f"{path}:{number}", _object(value, f"{path}:{number}")
        return
    for number, line in enumerate(io.BytesIO(content), start=1):
        if line.strip():
            yield f"{path}:{number}", _object(_parsed(line, f"{path}:{number}"), f"{path}:{number}")


def _content(path: Path) -> bytes:
    blocks, size = [], 0
    for _, block in ByteSpan(path).blocks():
        blocks.append(block)
        size += len(block)
        if size > MAX_BYTES:
            raise DataError(
                "the question file is too large",
                got=f"more than {MAX_BYTES >> 20} MiB of content",
                expected="questions, not a corpus",
                source=path,
                remedy="put the rows that are to be asked into a separate file",
            )
    return b"".join(blocks)


def _parsed(content: bytes, source: str) -> Any:
    try:
        return parse_json(content.decode("utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # includes numbers with thousands of digits and deeply nested brackets
        utf8 = isinstance(error, UnicodeDecodeError)
        raise DataError(
            "a question is not UTF-8 text" if utf8 else "a question is not valid JSON",
            got=error,
            expected="questions or conversations as JSON, JSON lines or Parquet",
            source=source,
            remedy="the file may be truncated; fetch or make it again",
        ) from error


def _object(value: Any, source: str) -> Row:
    if not isinstance(value, Mapping):
        raise DataError(
            "a question is not a JSON object",
            got=type(value).__name__,
            expected="an object for each question",
            source=source,
        )
    return value


def _table_rows(path: Path) -> Iterator[dict[str, Any]]:
    with opened_parquet(path) as file:
        try:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                yield from batch.to_pylist()
        except UnicodeDecodeError as error:  # Arrow does not validate strings
            raise damaged_table(path, error) from error


def value_of(row: Row, key: str, source: str) -> Any:
    """Return a value of a row; raise DataError if the key is missing."""
    if key not in row:
        raise DataError("a question lacks a key", got=sorted(map(str, row)), expected=key, source=source)
    return row[key]


def text_of(row: Row, key: str, source: str) -> str:
    """Return a non-empty string of a row; raise DataError if it is missing or invalid."""
    value = value_of(row, key, source)
    require(isinstance(value, str) and value != "", key, value, "a non-empty text", source)
    return whole(value, key, source)


def require(fits: bool, key: str, value: Any, expected: str, source: str) -> None:
    """Raise DataError if a value of a row is invalid."""
    if not fits:
        raise DataError(f"{key} is not valid", got=_short(value), expected=expected, source=source)


def _short(value: Any) -> str:
    return (str(value) if isinstance(value, int) else repr(value))[:80]


def whole(text: str, key: str, source: str) -> str:
    """Return the text; raise DataError for a lone surrogate, which JSON can express but UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{key} holds half a character (a lone surrogate)",
            got=repr(text[max(0, error.start - 20) : error.end + 20]),
            expected="Unicode text",
            source=source,
        ) from error
    return text


def no_question(path: Path) -> NoReturn:
    """Raise the error for a file without rows."""
    raise DataError(
        "the question file holds no question",
        source=path,
        remedy="the file may be cut short; fetch or make it again",
    )


def add_id(seen: dict[int, str], question_id: int, source: str) -> None:
    """Record a question id; raise DataError if it is a duplicate."""
    first = seen.setdefault(question_id, source)
    if first is not source:
        raise DataError(
            "a question id is given twice",
            got=question_id,
            expected=f"ids that differ (first seen at {first})",
            source=source,
        )
