"""JSON files: one row a line, or a list of rows that is read a window at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ...core.errors import DataError
from . import bytes as reading
from .bytes import ByteSpan, OnBytes, decode_line
from .document import Document, ReadContext, Sampler
from .rows import row_document

_NUMBER_TAIL = 3  # characters that show whether a number goes on, as in 1e+5
_SPACE = re.compile(r"[ \t\n\r]*")


def line_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """A document for each line that holds a row."""
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
    """A ``.json`` file: a list of rows, one row, or (a common misnomer) one row a line.

    Raises:
        DataError: not UTF-8, not JSON, or a row longer than ``DOCUMENT_LIMIT``.
    """
    shape = _shape(path)
    if shape == "lines":
        yield from line_documents(ByteSpan(path), context)
        return
    sampler = Sampler.of_file(context.options, path)
    window = _Window(path, context.on_bytes)
    for number, row in enumerate(window.rows() if shape == "list" else window.single(), start=1):
        if not sampler.keeps(number):
            continue
        if (document := row_document(row, path, number, context.options, context.problems)) is not None:
            yield document


def _shape(path: Path) -> Literal["list", "single", "lines"]:
    window = _Window(path, None)
    if window.peek() == "[":
        return "list"
    if window.peek() != "{":
        return "single"
    window.value()
    return "lines" if window.peek() == "{" else "single"


class _Window:
    """The part of a JSON file that is at hand; it grows to hold one value, and moves on behind it."""

    def __init__(self, path: Path, on_bytes: OnBytes | None) -> None:
        self._path = path
        self._texts = self._decoded(on_bytes)
        self._text = ""
        self._at = 0
        self._before = 0  # characters that were left behind
        self._decoder = json.JSONDecoder()

    def rows(self) -> Iterator[Any]:
        """The values of a list; nothing but white space may follow it."""
        self.peek()
        self._at += 1  # the bracket
        if self.peek() == "]":
            self._at += 1
        else:
            while True:
                yield self.value()
                mark = self.peek()
                if mark not in (",", "]"):
                    raise self._invalid("',' or ']' is missing")
                self._at += 1
                if mark == "]":
                    break
        if self.peek():
            raise self._invalid("more follows the list")

    def single(self) -> Iterator[Any]:
        yield self.value()
        if self.peek():
            raise self._invalid("more follows the value")

    def peek(self) -> str:
        """The next character that is not white space, ``""`` at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > reading.DOCUMENT_LIMIT:
                    limit = f"or a row is longer than {reading.DOCUMENT_LIMIT >> 20} MiB"
                    raise self._invalid(f"{error.msg}, {limit}", error.pos) from error
                if not self._more():
                    raise self._invalid(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep brackets
                raise self._invalid(error) from error
            else:
                length = end - self._at
                if end + _NUMBER_TAIL <= len(self._text) or not self._more():
                    self._at += length
                    return value

    def _more(self) -> bool:
        """Read on, at least as much as is at hand, so that a long value is not tried often."""
        self._before += self._at
        held, self._at = [self._text[self._at :]], 0
        wanted = 2 * len(held[0]) + 1
        size = len(held[0])
        while size < wanted and (text := next(self._texts, "")):
            held.append(text)
            size += len(text)
        grown = size > len(held[0])
        self._text = "".join(held)
        return grown

    def _decoded(self, on_bytes: OnBytes | None) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for _, block in ByteSpan(self._path).blocks(on_bytes):
                if text := decoder.decode(block):
                    yield text
            decoder.decode(b"", True)
        except UnicodeDecodeError as error:
            raise DataError(
                "the JSON file is not UTF-8 text",
                got=error,
                source=self._path,
                remedy="write it as UTF-8, or fetch it again",
            ) from error

    def _invalid(self, what: object, at: int | None = None) -> DataError:
        place = self._before + (self._at if at is None else at)
        return DataError(
            "the JSON file is not valid",
            got=f"{what} (at character {place:,})",
            source=self._path,
            remedy="it may be cut short; fetch or make it again",
        )
