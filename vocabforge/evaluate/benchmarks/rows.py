"""Rows of question files: JSON lines, a JSON list, Parquet, plain or compressed; the first bad row is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...corpus.extras import import_extra
from ...corpus.inputs import JSON_SUFFIXES, PARQUET_SUFFIXES, split_suffix
from ...corpus.parquet import row_groups
from ...corpus.reading import DOCUMENT_LIMIT, Span

Row = Mapping[str, Any]


def iter_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(``file:number``, row) of each row; the number is the line's, in lists and tables the row's, from 1.

    Raises:
        DataError: unreadable, damaged, not UTF-8, not JSON, or a row that is no object (with its place).
        VocabForgeError: a package is missing that this kind of file needs.
    """
    kind, _ = split_suffix(path)
    if kind in PARQUET_SUFFIXES:
        for number, table_row in enumerate(_table(path).to_pylist(), start=1):
            yield f"{path}:{number}", table_row
        return
    content = b"".join(block for _, block in Span(path).blocks())
    if kind in JSON_SUFFIXES and content.lstrip()[:1] == b"[":
        for number, value in enumerate(_parsed(content, str(path)), start=1):
            yield f"{path}:{number}", _object(value, f"{path}:{number}")
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", _object(_parsed(line, f"{path}:{number}"), f"{path}:{number}")


def first_row(path: Path) -> Row | None:
    """The first row, without reading the file to its end; None where there is none.

    Raises:
        DataError: unreadable, damaged, not JSON, or no object.
    """
    if split_suffix(path)[0] in PARQUET_SUFFIXES:
        return next(iter(_table(path, first=True).to_pylist()), None)
    held = b""
    for _, block in Span(path).blocks():
        held += block
        found, value = _first_value(held)
        if found:
            return None if value is None else _object(value, f"{path}:1")
        if len(held) > DOCUMENT_LIMIT:
            break
    if not held.strip():
        return None
    raise DataError(
        "the first row of the question file is not valid JSON",
        got=repr(held.lstrip()[:60].decode("utf-8", "replace")),
        source=path,
        remedy="the file may be truncated; fetch or make it again",
    )


def _first_value(held: bytes) -> tuple[bool, Any]:
    """Whether the bytes hold a whole first value, and that value; of an empty list it is None."""
    text = held.decode("utf-8", "replace").lstrip()
    if text.startswith("["):
        text = text[1:].lstrip()
        if text.startswith("]"):
            return True, None
    try:
        return True, json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return False, None


def _parsed(content: bytes, source: str) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError("a question is not UTF-8 text", got=error, source=source) from error
    except json.JSONDecodeError as error:
        raise DataError(
            "a question is not valid JSON",
            got=f"{error.msg} at line {error.lineno}, column {error.colno}",
            source=source,
            remedy="the file may be truncated; fetch or make it again",
        ) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise DataError("a question cannot be parsed", got=error, source=source) from error


def _object(value: Any, source: str) -> Row:
    if not isinstance(value, Mapping):
        raise DataError("a question is not a JSON object", got=type(value).__name__, source=source)
    return value


def _table(path: Path, *, first: bool = False) -> Any:
    """The Parquet file, or its first row, as an Arrow table."""
    groups = row_groups(path).rows
    parquet = import_extra("pyarrow.parquet", "reading Parquet", path)
    arrow = import_extra("pyarrow", "reading Parquet", path)
    try:
        with parquet.ParquetFile(path) as file:
            wanted = (
                next(([at] for at, rows in enumerate(groups) if rows), []) if first else range(len(groups))
            )
            table = file.read_row_groups(list(wanted))
            return table.slice(0, 1) if first else table
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            "the Parquet file is damaged or not Parquet",
            got=" ".join(str(error).split())[:300],
            source=path,
            remedy="fetch or make it again",
        ) from error


def text_of(row: Row, key: str, source: str) -> str:
    """A text of a row that is not empty.

    Raises:
        DataError: the key is absent, or holds something else.
    """
    if key not in row:
        raise DataError("a question lacks a key", got=sorted(map(str, row)), expected=key, source=source)
    value = row[key]
    if not isinstance(value, str) or not value:
        raise DataError(
            f"{key} has the wrong type", got=repr(value)[:80], expected="a non-empty text", source=source
        )
    return value


class Seen:
    """Question ids met so far."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}

    def add(self, question_id: int, source: str) -> None:
        """Record an id.

        Raises:
            DataError: it stands twice.
        """
        if question_id in self._places:
            raise DataError(
                "a question id stands twice",
                got=question_id,
                expected=f"ids that differ (first seen at {self._places[question_id]})",
                source=source,
            )
        self._places[question_id] = source
