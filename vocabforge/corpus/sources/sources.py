"""Documents from text, JSON, Parquet and Hub data sets; what cannot be read is counted and reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from .bytes import ByteSpan, OnBytes, Problems, text_lines
from .document import Document, ReadContext, Sampler, SourceOptions
from .inputs import SourceKind, expand_paths, kind_of
from .jsonl import json_documents, line_documents
from .pieces import file_documents
from .units import paragraphs, separated

__all__ = [
    "Document",
    "Problems",
    "SourceOptions",
    "expand_paths",
    "iter_documents",
    "text_documents",
]


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
