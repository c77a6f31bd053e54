"""Documents from text, JSON, Parquet and Hub data sets; unreadable inputs are counted and reported."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from .bytes import ByteSpan, OnBytes, Problems, no_text, text_lines
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


def iter_documents(
    paths: Iterable[Path | str],
    options: SourceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[Document]:
    """Yield all documents of the inputs in order, each whole, with at most one text file in memory.

    Args:
        paths: files, folders, globs, Hub data sets (``hub:NAME[:CONFIG[:SPLIT]]``).
        on_bytes: called with the number of stored (compressed) bytes after each read; not for Hub data sets.

    Raises:
        DataError: a file is missing, disappears or is truncated; with ``strict``, also an unreadable line.
        VocabForgeError: a package for this kind of file is not installed.
    """
    problems = Problems(strict=options.strict) if problems is None else problems
    context = ReadContext(options, problems, on_bytes)
    for path in expand_paths(paths):
        yield from documents_between(path, kind_of(path), context)


def documents_between(
    path: Path, kind: SourceKind, context: ReadContext, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """Return the documents of a source or of its part [start, stop); raises like :func:`iter_documents`.

    The unit of ``start`` and ``stop`` is bytes (``text``, ``lines``), row groups (``parquet``) or shards
    (``hub``); ``json`` and ``arrow`` files are read whole.
    """
    if kind in ("text", "lines") and path.is_file() and (why := no_text(path)) is not None:
        context.problems.add("the file is not UTF-8 text", path, 1, why)
        return iter(())
    if kind == "text":
        return text_documents(ByteSpan(path, start, stop), context)
    if kind == "lines":
        return line_documents(ByteSpan(path, start, stop), context)
    if kind == "json":
        return json_documents(path, context)
    if kind == "arrow":
        from .arrow import arrow_documents

        return arrow_documents(path, context)
    if kind == "parquet":
        from .parquet import parquet_documents

        return parquet_documents(path, context, start, stop)
    from .hub import hub_documents

    return hub_documents(str(path), context, start, stop)


def text_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """Yield the documents of a text file by ``text_unit`` or ``separator``; blank documents are skipped."""
    options, problems = context.options, context.problems
    if options.separator is None and options.text_unit == "file":
        yield from file_documents(span, context)
        return
    sampler = Sampler.of_file(options, span.path)
    lines = text_lines(span, problems, context.on_bytes)
    pieces: Iterable[tuple[int, int, str]]  # (line, place for sampling, text)
    if options.separator is not None:
        numbered = separated(((line, text) for _, line, text in lines), options.separator)
        pieces = ((line, number, text) for number, (line, text) in enumerate(numbered))
    elif options.text_unit == "line":
        pieces = ((line, offset, text.rstrip("\r\n")) for offset, line, text in lines)
    else:
        pieces = _paragraphs(lines)
    for line, place, text in pieces:
        if text.strip() and sampler.keeps(place):
            yield Document(text, None, span.path, span.where(line))


def _paragraphs(lines: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Yield (first line, its offset, text) of each run of non-blank lines."""
    for filled, run in itertools.groupby(lines, key=lambda one: bool(one[2].strip())):
        if filled:
            (offset, line, first), *rest = run
            yield line, offset, "".join([first, *(text for _, _, text in rest)]).strip("\r\n")


def separated(lines: Iterable[tuple[int, str]], separator: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each piece between separators, without newlines around it.

    Pieces and separators can span lines.
    """
    keep = len(separator) - 1 if "\n" in separator else 0
    held: list[str] = []
    tail = ""  # may be the beginning of a separator
    start, bare = 1, True
    for number, line in lines:
        *closed, rest = (tail + line).split(separator)
        for piece in closed:
            yield start, "".join([*held, piece]).strip("\r\n")
            held, start, bare = [], number, True
        if bare and not rest.strip("\r\n"):
            start = number + 1  # the newline after a separator belongs to no document
        else:
            bare = False
        at = max(0, len(rest) - keep) if keep else len(rest)
        held.append(rest[:at])
        tail = rest[at:]
    yield start, "".join([*held, tail]).strip("\r\n")
