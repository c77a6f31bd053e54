"""JSON files: one row per line, or a list of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import bytes as reading
from .bytes import ByteSpan, OnBytes, Problems, decode_line
from .document import Document, ReadContext, Sampler
from .rows import row_document


def line_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """Yield a document for each line with a row."""
    sampler = Sampler.of_file(context.options, span.path)
    problems = context.problems
    for offset, number, line in reading.byte_lines(span, problems, context.on_bytes):
        if not sampler.keeps(offset) or (text := decode_line(line, span, number, problems)) is None:
            continue
        if not text.strip():
            continue
        place = span.where(number)
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            problems.add("the line is not valid JSON", span.path, place, error)
            continue
        if (document := row_document(row, span.path, place, context.options, problems)) is not None:
            yield document


def json_documents(path: Path, context: ReadContext) -> Iterator[Document]:
    """Yield the documents of a ``.json`` file: a list of rows, one row, or (a misnomer) one row per line.

    Raises:
        DataError: not UTF-8, or not JSON.
    """
    if _is_lines(path):
        yield from line_documents(ByteSpan(path), context)
        return
    value = _value(path, context.on_bytes)
    sampler = Sampler.of_file(context.options, path)
    for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
        if not sampler.keeps(number):
            continue
        if (document := row_document(row, path, number, context.options, context.problems)) is not None:
            yield document


def _is_lines(path: Path) -> bool:
    """Return whether the first line is a complete JSON object and more lines follow."""
    lines = (line for _, _, line in reading.byte_lines(ByteSpan(path), Problems(shown=0)) if line.strip())
    first, second = next(lines, b""), next(lines, b"")
    try:
        return bool(second) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _value(path: Path, on_bytes: OnBytes | None) -> Any:
    content = b"".join(block for _, block in ByteSpan(path).blocks(on_bytes))
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # includes huge numbers and deep nesting
        raise DataError(
            "the JSON file is not valid",
            got=error if content.strip() else "an empty file",
            source=path,
            remedy="it may be cut short; fetch or make it again",
        ) from error
