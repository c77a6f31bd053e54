"""Rows of question files: JSON lines, a JSON list, Parquet, plain or compressed; the first bad row is an error."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from ...core.errors import DataError
from ...core.files import parse_json
from ...corpus.sources.bytes import DOCUMENT_LIMIT, ByteSpan
from ...corpus.sources.inputs import JSON_SUFFIXES, PARQUET_SUFFIXES, import_extra, split_suffix

Row = Mapping[str, Any]

MAX_BYTES = 256 << 20
"""Longest content of a question file that is read: a packed file of a few KiB can hold any number of GiB."""
_BATCH_ROWS = 64


def iter_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """(``file:number``, row) of each row; the number is the line's, in lists and tables the row's, from 1.

    Raises:
        DataError: unreadable, damaged, longer than ``MAX_BYTES``, not UTF-8, not JSON, or a row that is no object
            (with its place).
        VocabForgeError: a package is missing that this kind of file needs.
    """
    kind, _ = split_suffix(path)
    if kind in PARQUET_SUFFIXES:
        for number, table_row in enumerate(_table_rows(path), start=1):
            yield f"{path}:{number}", table_row
        return
    content = _content(path)
    if kind in JSON_SUFFIXES and content.lstrip()[:1] == b"[":
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
            raise _too_large(path)
    return b"".join(blocks)


def _too_large(path: Path) -> DataError:
    return DataError(
        "the question file is too large",
        got=f"more than {MAX_BYTES >> 20} MiB of content",
        expected="questions, not a corpus",
        source=path,
        remedy="keep the rows that are to be asked in a file of their own",
    )


def first_row(path: Path) -> Row | None:
    """The first row, without reading the file to its end; None where there is none.

    Raises:
        DataError: unreadable, damaged, not JSON, or no object.
    """
    if split_suffix(path)[0] in PARQUET_SUFFIXES:
        return next(_table_rows(path), None)
    held, seen, again_at = b"", 0, 0
    for _, block in chain(ByteSpan(path).blocks(), [(0, b"")]):  # at the end, what was put off is tried
        held = held + block if held else block.lstrip()
        seen += len(block)
        last = not block or seen > DOCUMENT_LIMIT
        if last or len(held) >= again_at:  # each try reads all that is held, so it doubles in between
            again_at = 2 * len(held)
            found, value = _first_value(held)
            if found:
                return None if value is None else _object(value, f"{path}:1")
        if last:
            break
    if not held:
        return None
    raise DataError(
        "the first row of the question file is not valid JSON",
        got=repr(held.lstrip()[:60].decode("utf-8", "replace")),
        expected="questions or conversations as JSON, JSON lines or Parquet",
        source=path,
        remedy="plain text holds no questions; a JSON file may be truncated: fetch or make it again",
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
        return parse_json(content.decode("utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # also numbers of thousands of digits, thousands of brackets
        what, got = "a question cannot be parsed", str(error)
        if isinstance(error, UnicodeDecodeError):
            what = "a question is not UTF-8 text"
        elif isinstance(error, json.JSONDecodeError):
            what, got = (
                "a question is not valid JSON",
                f"{error.msg} at line {error.lineno}, column {error.colno}",
            )
        raise DataError(
            what, got=got, source=source, remedy="the file may be truncated; fetch or make it again"
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
    """Rows of a Parquet file, a few held at a time."""
    from ...corpus.sources.parquet import row_groups

    if sum(row_groups(path).rows) > MAX_BYTES >> 8:  # an empty row's objects take as much memory
        raise _too_large(path)
    parquet = import_extra("pyarrow.parquet", "reading Parquet", path)
    arrow = import_extra("pyarrow", "reading Parquet", path)
    size = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    size += _text_bytes(row)
                    if size > MAX_BYTES:  # of a dictionary's few values a file can make any number of rows
                        raise _too_large(path)
                    yield row
    except UnicodeDecodeError as error:  # Arrow does not check texts when it reads them
        raise DataError(
            "a question is not UTF-8 text",
            got=error,
            source=path,
            remedy="write the table again with texts in UTF-8",
        ) from error
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            "the Parquet file is damaged or not Parquet",
            got=" ".join(str(error).split())[:300],
            source=path,
            remedy="fetch or make it again",
        ) from error


def _text_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8


def value_of(row: Row, key: str, source: str) -> Any:
    """A value of a row.

    Raises:
        DataError: the key is absent.
    """
    if key not in row:
        raise DataError("a question lacks a key", got=sorted(map(str, row)), expected=key, source=source)
    return row[key]


def text_of(row: Row, key: str, source: str) -> str:
    """A text of a row that is not empty.

    Raises:
        DataError: the key is absent, or holds something else, or half a character.
    """
    value = value_of(row, key, source)
    require(isinstance(value, str) and value != "", key, value, "a non-empty text", source)
    return whole(value, key, source)


def require(fits: bool, key: str, value: Any, expected: str, source: str) -> None:
    """Check a value of a row.

    Raises:
        DataError: it does not fit.
    """
    if not fits:
        raise DataError(f"{key} is not valid", got=_short(value), expected=expected, source=source)


def _short(value: Any) -> str:
    return (str(value) if isinstance(value, int) else repr(value))[:80]


def whole(text: str, key: str, source: str) -> str:
    """The text, checked for half characters (lone surrogates), which JSON can write and UTF-8 cannot.

    Raises:
        DataError: it holds one.
    """
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
    """Refuse a file without a row.

    Raises:
        DataError: always.
    """
    raise DataError(
        "the question file holds no question",
        source=path,
        remedy="the file may be cut short; fetch or make it again",
    )


def add_id(seen: dict[int, str], question_id: int, source: str) -> None:
    """Record a question id.

    Raises:
        DataError: it was given before.
    """
    first = seen.setdefault(question_id, source)
    if first is not source:
        raise DataError(
            "a question id stands twice",
            got=question_id,
            expected=f"ids that differ (first seen at {first})",
            source=source,
        )
