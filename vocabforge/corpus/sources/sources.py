"""Documents from text, JSON, Parquet, Arrow and Hub data sets; unreadable inputs are counted and reported."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import DataError
from . import bytes as reading
from .bytes import ByteSpan, OnBytes, Problems, decode_line, no_text, text_lines
from .document import Document, ReadContext, Sampler, SourceOptions
from .inputs import SourceKind, expand_paths, kind_of
from .rows import row_document

if TYPE_CHECKING:
    from ..tokenizer.cuts import CutRule

PIECE_CHARACTERS = 1 << 20
_STEP = 8 << 20
LONG_LINE = 16 << 20  # bytes


def iter_documents(
    paths: Iterable[Path | str],
    options: SourceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: OnBytes | None = None,
) -> Iterator[Document]:
    """Yield all documents of the inputs in order, each whole, with at most one text file in memory.

    Args:
        paths: files, folders, globs, URLs, Hub data sets (``hub:NAME[:CONFIG[:SPLIT]]``).
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
        from .parquet import arrow_documents

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
    for filled, run in itertools.groupby(lines, key=lambda line: bool(line[2].strip())):
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


def file_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """Yield the document of a text file.

    With ``context.cut``, the document is split into pieces of about ``PIECE_CHARACTERS``. Blank files are
    skipped.

    Raises:
        DataError: the text is too long to read whole and has no safe cut.
    """
    if not Sampler.of_file(context.options, span.path).keeps("file"):
        for _ in span.blocks(context.on_bytes):
            pass
        return
    texts = text_blocks(span, context.problems, context.on_bytes)
    if context.cut is None:
        text = _whole(texts, span.path, context.whole_limit)
        if text.strip():
            yield Document(text, None, span.path, 1)
        return
    begins = True
    for text in _pieces(texts, context.cut, span.path):
        if begins and text.isspace() and is_blank(span.path):
            return
        yield Document(text, None, span.path, 1, begins)
        begins = False


def is_blank(path: Path) -> bool:
    """Return whether a text file contains only white space."""
    return all(not text.strip() for text in text_blocks(ByteSpan(path), Problems(shown=0)))


def _whole(texts: Iterator[str], path: Path, limit: int | None) -> str:
    held: list[str] = []
    size = 0
    for text in texts:
        held.append(text)
        if limit is not None:
            size += len(text.encode("utf-8"))
            if size > limit:
                raise _no_place(path, limit)
    return "".join(held)


def _pieces(texts: Iterator[str], cut: CutRule, path: Path) -> Iterator[str]:
    """Yield pieces that end at the first allowed cut after ``PIECE_CHARACTERS``, or at the end of the text.

    A cut is valid only after reading the ``cut.margin`` characters that follow it.
    """
    held: list[str] = []
    size = searched = 0
    wanted = PIECE_CHARACTERS + cut.margin
    for text in texts:
        held.append(text)
        size += len(text)
        if size < wanted:
            continue
        buffer = "".join(held)
        at = 0
        while size - at >= PIECE_CHARACTERS + cut.margin:
            place = cut.first(buffer, max(at + PIECE_CHARACTERS, searched))
            if place is None or place + cut.margin > size:
                searched = max(searched, size - cut.margin)
                break
            yield buffer[at:place]
            at = place
        held = [buffer[at:]]
        size, searched = size - at, max(0, searched - at)
        if size * 4 > reading.DOCUMENT_LIMIT and len(held[0].encode("utf-8")) > reading.DOCUMENT_LIMIT:
            raise _no_place(path, reading.DOCUMENT_LIMIT)
        stuck = size >= PIECE_CHARACTERS + cut.margin
        wanted = size + min(size, _STEP) if stuck else PIECE_CHARACTERS + cut.margin
    if rest := "".join(held):
        yield rest


def _no_place(path: Path, limit: int) -> DataError:
    return DataError(
        "the text is too long to be read whole, and this tokenizer gives no place where it may be cut "
        "with certainty",
        got=f"more than {limit >> 20} MiB without such a place",
        source=path,
        remedy="use --text-unit line or paragraph, or smaller files",
    )


def text_blocks(span: ByteSpan, problems: Problems, on_bytes: OnBytes | None = None) -> Iterator[str]:
    """Yield the text of a file in blocks; a line that is not UTF-8 is skipped and recorded.

    A line longer than ``LONG_LINE`` is split into parts that are treated as lines.
    """
    held: list[bytes] = []  # an unfinished line
    size = number = 0
    for _, block in span.blocks(on_bytes):
        end = block.rfind(b"\n") + 1
        if end:
            lines = b"".join((*held, block[:end]))
            yield _decoded(lines, span, number, problems)
            number += lines.count(b"\n")
            held, size = [], 0
        held.append(block[end:])
        size += len(block) - end
        if size > LONG_LINE:
            part = b"".join(held)
            last = len(part) - 1  # the last character may be incomplete
            while last > len(part) - 4 and part[last] & 0xC0 == 0x80:
                last -= 1
            yield _decoded(part[:last], span, number, problems)
            held, size = [part[last:]], len(part) - last
    yield _decoded(b"".join(held), span, number, problems)


def _decoded(lines: bytes, span: ByteSpan, number: int, problems: Problems) -> str:
    """Decode lines together, or one by one if that fails; ``number`` lines precede them."""
    try:
        return lines.decode("utf-8")
    except UnicodeDecodeError:
        *whole, rest = lines.split(b"\n")
        numbered = enumerate([*(line + b"\n" for line in whole), rest], start=number + 1)
        return "".join(decode_line(line, span, at, problems) or "" for at, line in numbered)


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
