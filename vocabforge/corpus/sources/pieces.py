"""Text files as one document: whole, or in consecutive pieces between safe cuts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import DataError
from . import bytes as reading
from .bytes import ByteSpan, OnBytes, Problems, decode_line
from .document import Document, ReadContext, Sampler

if TYPE_CHECKING:
    from ..tokenizer.cuts import CutRule

PIECE_CHARACTERS = 1 << 20
_STEP = 8 << 20
LONG_LINE = 16 << 20  # bytes


def file_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """Yield the document of a text file, or of a part that begins and ends at a safe cut.

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
    begins = span.start == 0
    for text in _pieces(texts, context.cut, span.path):
        if begins and span.stop is None and text.isspace() and is_blank(span.path):
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
