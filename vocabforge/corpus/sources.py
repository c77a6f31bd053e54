"""Documents from text and JSON files, plain or compressed; what cannot be read is counted and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import DataError, UsageError
from .chat import Message, parse_conversation
from .reading import (
    LINE_SUFFIXES,
    TEXT_SUFFIXES,
    Problems,
    byte_lines,
    expand_paths,
    paragraphs,
    separated,
    split_suffix,
    text_lines,
)

__all__ = ["Document", "Problems", "SourceOptions", "TextUnit", "expand_paths", "iter_documents"]

TextUnit = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class SourceOptions:
    """How files are cut into documents.

    Attributes:
        text_field: JSON field that holds the text (or the conversation); None finds the usual ones.
        text_unit: a text file is one document, or one a line, or one a paragraph (blank lines part them).
        separator: documents of a text file are parted by this literal instead, newlines around it dropped.
        strict: the first unreadable line is an error instead of being counted and skipped.
    """

    text_field: str | None = None
    text_unit: TextUnit = "file"
    separator: str | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.separator == "":
            raise UsageError(
                "the separator of documents is empty", expected='a literal such as "<|endoftext|>"'
            )


@dataclass(frozen=True)
class Document:
    """One text or one conversation (a row can hold both), and where it stands."""

    text: str | None
    messages: list[Message] | None
    source: Path
    line: int

    def plain_text(self) -> str:
        """The text; for a conversation its contents, one under the other."""
        if self.text is not None:
            return self.text
        return "\n".join(str(message["content"]) for message in self.messages or ())


def iter_documents(
    paths: Iterable[Path],
    options: SourceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """All documents of files and folders, in order, without holding more than one text file in memory.

    Args:
        paths: files or folders.
        options: how files are cut.
        problems: collects what is skipped; by default a new one by ``options.strict``.
        on_bytes: called with each number of stored (compressed) bytes read, for a progress bar.

    Raises:
        DataError: a file is missing, vanishes, or is cut short; with ``strict`` the first unreadable line.
    """
    problems = Problems(strict=options.strict) if problems is None else problems
    for path in expand_paths(paths):
        content, _ = split_suffix(path)
        if content in TEXT_SUFFIXES:
            rows = _text_documents(path, options, problems, on_bytes)
        elif content in LINE_SUFFIXES:
            rows = _line_documents(path, options, problems, on_bytes)
        else:
            rows = _json_documents(path, options, problems, on_bytes)
        yield from rows


def _text_documents(
    path: Path, options: SourceOptions, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[Document]:
    lines = text_lines(path, problems, on_bytes)
    if options.separator is not None:
        pieces = separated(lines, options.separator)
    elif options.text_unit == "line":
        pieces = ((number, line.rstrip("\r\n")) for number, line in lines)
    elif options.text_unit == "paragraph":
        pieces = paragraphs(lines)
    else:
        pieces = iter([(1, "".join(line for _, line in lines))])
    for number, text in pieces:
        if text.strip():
            yield Document(text, None, path, number)


def _line_documents(
    path: Path, options: SourceOptions, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[Document]:
    for number, line in text_lines(path, problems, on_bytes):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            problems.add("the line is not valid JSON", path, number, error)
            continue
        if (document := _row_document(row, path, number, options, problems)) is not None:
            yield document


def _json_documents(
    path: Path, options: SourceOptions, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[Document]:
    """A ``.json`` file: a list of rows, one row, or (a common misnomer) one row a line."""
    try:
        text = b"".join(line for _, line in byte_lines(path, on_bytes)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError("the JSON file is not UTF-8 text", got=error, source=path) from error
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        if (
            text.lstrip().startswith("{")
            and isinstance(error, json.JSONDecodeError)
            and "Extra data" in error.msg
        ):
            yield from _line_documents(path, options, problems, None)
            return
        raise DataError(
            "the JSON file is not valid",
            got=error,
            source=path,
            remedy="it may be cut short; fetch or make it again",
        ) from error
    for number, row in enumerate(value if isinstance(value, list) else [value], start=1):
        if (document := _row_document(row, path, number, options, problems)) is not None:
            yield document


def _row_document(
    row: Any, path: Path, number: int, options: SourceOptions, problems: Problems
) -> Document | None:
    """The document of a JSON row, or None after the problem was recorded (or the text is empty)."""
    if not isinstance(row, dict):
        problems.add("the row is not a JSON object", path, number, type(row).__name__)
        return None
    text, conversation = row.get("text"), row
    if options.text_field is not None:
        if options.text_field not in row:
            problems.add(
                f"the row has no field {options.text_field!r}", path, number, f"fields: {', '.join(row)}"
            )
            return None
        value = row[options.text_field]
        text, conversation = value, {"messages": value} if isinstance(value, list) else {}
    text = text if isinstance(text, str) else None
    try:
        messages = parse_conversation(conversation)
    except DataError as error:
        problems.add(error.message, path, number, error.got)
        return None
    if text is None and messages is None:
        fields = ", ".join(map(str, row)) or "none"
        problems.add("the row holds neither a text nor a conversation", path, number, f"fields: {fields}")
        return None
    if messages is None and not (text or "").strip():
        return None
    return Document(text, messages, path, number)
