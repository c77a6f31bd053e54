"""A text file as one document: whole, or in consecutive pieces cut where no token can change."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from ...core.errors import DataError
from . import bytes as reading
from .bytes import ByteSpan, OnBytes, Problems, decode_line, unreadable
from .document import Cutter, Document, ReadContext, Sampler

PIECE_CHARACTERS = 1 << 20
_STEP = 8 << 20
LONG_LINE = 16 << 20
"""A longer line (bytes) is decoded in parts, so it cannot be left out any more when it proves not UTF-8."""


def file_documents(span: ByteSpan, context: ReadContext) -> Iterator[Document]:
    """The document of a text file, or of a part of it that begins and ends at a safe cut.

    With ``context.cut`` it comes as pieces of about ``PIECE_CHARACTERS``; joined they are the text exactly.
    A file of nothing but white space has no document.

    Raises:
        DataError: the text is too long to be read whole and gives no place to cut it.
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
    """Whether a text file holds nothing but white space."""
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


def _pieces(texts: Iterator[str], cut: Cutter, path: Path) -> Iterator[str]:
    """Pieces that end at the first allowed place behind ``PIECE_CHARACTERS``, or at the text's end.

    A place counts only with ``cut.margin`` characters read behind it: what follows decides too.
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
    """The text of a file in consecutive parts; a line that is not UTF-8 is left out and recorded.

    Raises:
        DataError: a line longer than ``LONG_LINE`` is not UTF-8.
    """
    lines = _LineDecoder(span, problems)
    held: list[bytes] = []  # an unfinished line
    size = 0
    for _, block in span.blocks(on_bytes):
        end = block.rfind(b"\n") + 1
        if end:
            yield lines.decode(b"".join((*held, block[:end])))
            held, size = [block[end:]], len(block) - end
        else:
            held.append(block)
            size += len(block)
        if size > LONG_LINE or lines.in_long_line:
            yield lines.decode_part(b"".join(held))
            held, size = [], 0
    yield lines.decode(b"".join(held), last=True)


class _LineDecoder:
    """Decodes runs of whole lines at once, line by line only where something is wrong."""

    def __init__(self, span: ByteSpan, problems: Problems) -> None:
        self._span, self._problems = span, problems
        self._number = 0
        self._open = codecs.getincrementaldecoder("utf-8")()
        self.in_long_line = False
        self._partial = span.start > 0 and _byte_before(span) != b"\n"

    def decode_part(self, part: bytes) -> str:
        """A part of a long line without its end."""
        self.in_long_line = True
        return self._strict(part, final=False)

    def decode(self, lines: bytes, *, last: bool = False) -> str:
        """Whole lines, the first of them perhaps the end of a long one."""
        start, partial = "", self._partial and not self.in_long_line
        self._partial = False
        if self.in_long_line:
            line, newline, lines = lines.partition(b"\n")
            start = self._strict(line + newline, final=True)
            self.in_long_line = False
            self._number += 1
        number = self._number
        self._number += lines.count(b"\n")
        try:
            return start + lines.decode("utf-8")
        except UnicodeDecodeError:
            return start + "".join(self._one_by_one(lines, number, partial, last))

    def _one_by_one(self, lines: bytes, number: int, partial: bool, last: bool) -> Iterator[str]:
        *whole, rest = lines.split(b"\n")
        for line in whole:
            number += 1
            if partial or len(line) > LONG_LINE:
                yield self._strict(line + b"\n", final=True)
            else:
                yield decode_line(line + b"\n", self._span, number, self._problems) or ""
            partial = False
        if partial or len(rest) > LONG_LINE or (last and self._span.stop is not None):
            yield self._strict(rest, final=True)
        else:
            yield decode_line(rest, self._span, number + 1, self._problems) or ""

    def _strict(self, part: bytes, *, final: bool) -> str:
        try:
            return self._open.decode(part, final)
        except UnicodeDecodeError as error:
            raise DataError(
                f"a line longer than {LONG_LINE >> 20} MiB is not valid UTF-8, and too long to be left out",
                got=error.reason,
                source=f"{self._span.path}:{self._span.where(self._number + 1)}",
                remedy="mend or split the line",
            ) from error


def _byte_before(span: ByteSpan) -> bytes:
    try:
        with open(span.path, "rb") as handle:
            handle.seek(span.start - 1)
            return handle.read(1)
    except OSError as error:
        raise unreadable(span.path, error) from error
