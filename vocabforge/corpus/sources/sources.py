"""Documents from text, JSON, Parquet and Hub data sets; what cannot be read is counted and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from . import bytes as reading
from .bytes import ByteSpan, OnBytes, Problems, text_lines
from .document import Document, ReadContext, Sampler, SourceOptions
from .inputs import SourceKind, expand_paths, kind_of
from .jsonl import json_documents, line_documents
from .pieces import file_documents

__all__ = [
    "Document",
    "Problems",
    "SourceOptions",
    "expand_paths",
    "iter_documents",
    "text_documents",
]

Place = TypeVar("Place")


def iter_documents(
    paths: Iterable[Path | str],
    options: SourceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[Document]:
    """All documents of inputs, in order, each whole, without holding more than one text file in memory.

    Args:
        paths: files, folders, globs, Hub data sets (``hub:NAME[:CONFIG[:SPLIT]]``).
        on_bytes: called with each number of stored (compressed) bytes read, for a progress bar; not for
            Hub data sets.

    Raises:
        DataError: a file is missing, vanishes, or is cut short; with ``strict`` the first unreadable line.
        VocabForgeError: a package is missing that this kind of file needs.
    """
    problems = Problems(strict=options.strict) if problems is None else problems
    context = ReadContext(options, problems, on_bytes)
    for path in expand_paths(paths):
        yield from documents_between(path, kind_of(path), context)


def documents_between(
    path: Path, kind: SourceKind, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Documents of a source, or of the part of it that a shard names.

    Args:
        kind: how it is read; a ``json`` file is read whole.
        start: first byte (``text``, ``lines``), row group (``parquet``) or shard (``hub``).
        stop: the one behind the last, None for the source's end.

    Raises:
        DataError, VocabForgeError: see :func:`iter_documents`.
    """
    if kind == "text":
        return text_documents(ByteSpan(path, start, stop), context)
    if kind == "lines":
        return line_documents(ByteSpan(path, start, stop), context)
    if kind == "json":
        return json_documents(path, context)
    if kind == "parquet":
        from .parquet import parquet_documents

        return parquet_documents(path, context, start, stop)
    from .hub import hub_documents

    return hub_documents(str(path), context, start, stop)


def text_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """Documents of a text file by ``text_unit`` or ``separator``; of white space alone there are none."""
    options, problems = context.options, context.problems
    if options.separator is None and options.text_unit == "file":
        yield from file_documents(span, context)
        return
    sampler = Sampler.of_file(options, span.path)
    lines = text_lines(span, problems, context.on_bytes)

    def too_long(number: int) -> None:
        problems.add("the document is too long to be held", span.path, span.where(number))

    pieces: Iterable[tuple[int, int | str, str]]  # (line, what decides the draw, text)
    if options.separator is not None:
        numbered = separated(((line, text) for _, line, text in lines), options.separator, too_long)
        pieces = ((line, number, text) for number, (line, text) in enumerate(numbered))
    elif options.text_unit == "line":
        pieces = ((line, offset, text.rstrip("\r\n")) for offset, line, text in lines)
    else:
        placed = (((offset, line), text) for offset, line, text in lines)
        runs = paragraphs(placed, lambda place: too_long(place[1]))
        pieces = ((line, offset, text) for (offset, line), text in runs)
    for line, place, text in pieces:
        if text.strip() and sampler.keeps(place):
            yield Document(text, None, span.path, span.where(line))


class _Gathered(Generic[Place]):
    """The unfinished document; its lines are dropped once they are more than may be held."""

    def __init__(self, too_long: Callable[[Place], None] | None) -> None:
        self._too_long = too_long
        self._lines: list[str] = []
        self._size = 0

    def __bool__(self) -> bool:
        return self._size > 0

    def add(self, text: str) -> None:
        self._size += len(text)
        self._lines = self._lines if self._size <= reading.DOCUMENT_LIMIT else []
        self._lines.append(text)

    def close(self, place: Place) -> Iterator[tuple[Place, str]]:
        """The document, or none when it was too long; then a new one begins."""
        lines, size = self._lines, self._size
        self._lines, self._size = [], 0
        if size <= reading.DOCUMENT_LIMIT:
            yield place, "".join(lines)
        elif self._too_long is not None:
            self._too_long(place)


def paragraphs(
    lines: Iterable[tuple[Place, str]], too_long: Callable[[Place], None] | None = None
) -> Iterator[tuple[Place, str]]:
    """(place of the first line, text) of each run of lines that are not blank.

    Args:
        lines: (place, line with its newline).
        too_long: called with the place of a paragraph beyond ``reading.DOCUMENT_LIMIT``, which is left out.
    """
    held = _Gathered(too_long)
    start: list[Place] = []
    for place, line in lines:
        if line.strip():
            start = start if held else [place]
            held.add(line)
        elif held:
            yield from _bare(held.close(start[0]))
    if held:
        yield from _bare(held.close(start[0]))


def separated(
    lines: Iterable[tuple[int, str]], separator: str, too_long: Callable[[int], None] | None = None
) -> Iterator[tuple[int, str]]:
    """(first line, text) of each piece between separators, without the newlines around it.

    Args:
        lines: (number, line with its newline).
        separator: a literal; it may run over line ends.
        too_long: as in :func:`paragraphs`.
    """
    keep = len(separator) - 1 if "\n" in separator else 0
    held = _Gathered(too_long)
    tail = ""  # may be the beginning of a separator
    start, bare = 1, True
    for number, line in lines:
        *closed, rest = (tail + line).split(separator)
        for piece in closed:
            held.add(piece)
            yield from _bare(held.close(start))
            start, bare = number, True
        if bare and not rest.strip("\r\n"):
            start = number + 1  # the newline after a separator belongs to no document
        else:
            bare = False
        at = max(0, len(rest) - keep) if keep else len(rest)
        held.add(rest[:at])
        tail = rest[at:]
    held.add(tail)
    yield from _bare(held.close(start))


def _bare(pieces: Iterator[tuple[Place, str]]) -> Iterator[tuple[Place, str]]:
    return ((place, text.strip("\r\n")) for place, text in pieces)
