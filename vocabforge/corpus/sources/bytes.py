"""Files in, bytes and lines out: plain or compressed, whole or from byte to byte, in bounded memory."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

from ...core.console import say
from ...core.errors import DataError
from .inputs import import_extra, split_suffix

_PACKED_BYTES = 1 << 14  # a block of .zst that is unpacked at once
BLOCK_BYTES = 1 << 20
DOCUMENT_LIMIT = 64 << 20
"""Longest line, row, paragraph or stretch of text without a cut that is held, in bytes."""
BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 64 << 10  # bytes at the start that show what a file holds
# No text begins with these: they are not UTF-8.
_PACKED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}

OnBytes = Callable[[int], None]


NOT_READ = "not read: "
"""Begins the kinds of :class:`Problems` that count keys of used rows; ``KEY in turns`` or ``KEY in rows`` follows."""


@dataclass
class Problems:
    """Counts what was skipped and what of the used rows nothing read; says the first ``shown`` skipped on stderr.

    With ``strict`` the first of either kind raises.
    """

    strict: bool = False
    shown: int = 5
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of rows, lines and files that were skipped."""
        return sum(count for kind, count in self.kinds.items() if not kind.startswith(NOT_READ))

    def take(self, error: DataError, source: Path, line: int | str) -> None:
        """Record what is wrong with one row.

        Raises:
            DataError: ``strict`` is on.
        """
        self.add(error.message, source, line, error.got, error.expected)

    def add(
        self, kind: str, source: Path, line: int | str, detail: object = None, expected: object = None
    ) -> None:
        """Record one problem; ``line`` is a number, or the place in words.

        Raises:
            DataError: ``strict`` is on.
        """
        where = f"{source}:{line}"
        if self.strict:
            raise DataError(
                kind,
                got=detail,
                expected=expected,
                source=where,
                remedy="mend the input, or leave --strict out to skip such lines",
            )
        self.kinds[kind] += 1
        if len(self.first) < self.shown:
            self.first.append(f"{where}: {kind}" + (f" ({detail})" if detail is not None else ""))
            say(f"Skipped {self.first[-1]}")
        elif self.shown and self.total == self.shown + 1:
            say("Skipped more lines; only their number is reported.")

    def unread(self, found: Mapping[str, int], source: Path, line: int | str) -> None:
        """Record what of a row that is used was not read: numbers by ``KEY in turns`` or ``KEY in rows``.

        Raises:
            DataError: ``strict`` is on.
        """
        if found and self.strict:
            raise DataError(
                "the row has keys that are not read",
                got=", ".join(key.rpartition(" in ")[0] for key in found),
                source=f"{source}:{line}",
                remedy="take them out, or leave --strict out to count them and go on",
            )
        self.kinds.update({f"{NOT_READ}{key}": count for key, count in found.items()})

    def summary(self) -> str | None:
        """Lines with the number of each kind, None when all was well."""
        return summarize_problems(self.kinds)


def summarize_problems(kinds: Mapping[str, int]) -> str | None:
    """What :meth:`Problems.summary` says of these numbers."""
    ordered = Counter(kinds).most_common()
    skipped = [f"{count:,} x {kind}" for kind, count in ordered if not kind.startswith(NOT_READ)]
    left = []
    for kind, count in ordered:
        if kind.startswith(NOT_READ):
            key, _, unit = kind.removeprefix(NOT_READ).rpartition(" in ")
            left.append(f"{key} in {count:,} {unit[:-1] if count == 1 else unit}")
    lines = [f"Skipped {'; '.join(skipped)}"] if skipped else []
    lines += [f"Not read: {', '.join(left)}"] if left else []
    return "\n".join(lines) or None


def file_size(path: Path) -> int:
    """Stored bytes of a file.

    Raises:
        DataError: it is gone, or not to be looked at.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def no_text(path: Path) -> str | None:
    """Why a file is no UTF-8 text, as its start shows; None if it may be.

    Raises:
        DataError: as of :meth:`ByteSpan.blocks`.
    """
    start = next((block for _, block in ByteSpan(path).blocks()), b"")[:_LOOKED_AT]
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16: iconv -f UTF-16 -t UTF-8 converts it"
    if start.count(b"\0") * 10 > len(start):
        return "binary: NUL bytes"
    *lines, _ = start.split(b"\n")
    if len(lines) >= 8 and sum(len(line) for line in lines if _is_utf8(line)) * 10 < len(start):
        return "binary, or of another encoding: most lines are not UTF-8"
    return None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file that the system does not let us read."""
    return DataError(
        "the input cannot be read",
        got=error.strerror or error,
        source=path,
        remedy="check the path, its permissions and the disk",
    )


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class ByteSpan:
    """The bytes [start, stop) of a file; ``start`` is above 0 only in uncompressed ones, ``stop`` None for the end."""

    path: Path
    start: int = 0
    stop: int | None = None

    def where(self, number: int) -> int | str:
        """How a line is called: its number from 1, counted behind the byte where the span starts."""
        return number if self.start == 0 else f"byte {self.start}+line {number}"

    def blocks(self, on_bytes: OnBytes | None = None) -> Iterator[tuple[int, bytes]]:
        """(offset in the content, bytes) of consecutive blocks; a byte order mark at the start is dropped.

        Raises:
            DataError: unreadable, damaged, cut short, shorter than ``stop``, or compressed under a plain name.
        """
        for at, block in self._read(on_bytes, unpacked=True):
            suffix = next((_PACKED[magic] for magic in _PACKED if at == 0 and block.startswith(magic)), None)
            if suffix is not None:
                raise DataError(
                    "the file is compressed, but its name does not say so",
                    got=f"{suffix[1:]} data",
                    source=self.path,
                    remedy=f"rename it to {self.path.name}{suffix}",
                )
            bare = block[len(BOM) :] if at == 0 and block.startswith(BOM) else block
            yield at + len(block) - len(bare), bare

    def stored_blocks(self) -> Iterator[bytes]:
        """The stored bytes as they are, compressed or not; errors as of :meth:`blocks`."""
        return (block for _, block in self._read(None, unpacked=False))

    def _read(self, on_bytes: OnBytes | None, *, unpacked: bool) -> Iterator[tuple[int, bytes]]:
        at = self.start
        try:
            with open(self.path, "rb") as stored:
                handle = _unpacked(self.path, stored) if unpacked else stored
                stored.seek(self.start)
                for block in _counted(self._raw(handle), stored, self.start, on_bytes):
                    yield at, block
                    at += len(block)
        except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
            raise DataError(
                "the compressed file is damaged or cut short",
                got=f"{error} (after {at:,} bytes of content)",
                source=self.path,
                remedy="fetch or pack it again",
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        if self.stop is not None and at < self.stop:
            raise DataError(
                "the input has become shorter",
                got=f"{at:,} bytes",
                expected=f"at least {self.stop:,} bytes, as when the work was divided",
                source=self.path,
                remedy="run again when nothing writes to it",
            )

    def _raw(self, handle: _Readable) -> Iterator[bytes]:
        """Blocks; the first is long enough to show a byte order mark."""
        left = None if self.stop is None else self.stop - self.start
        held = b""
        first = True
        while left is None or left > 0:
            block = handle.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
            if not block:
                break
            if left is not None:
                left -= len(block)
            held += block
            if first and len(held) < len(BOM):
                continue
            yield held
            held, first = b"", False
        if held:
            yield held


def _counted(
    blocks: Iterator[bytes], stored: IO[bytes], seen: int, on_bytes: OnBytes | None
) -> Iterator[bytes]:
    for block in chain(blocks, [b""]):  # the end of a compressed file is read behind its last block
        if on_bytes is not None and (now := stored.tell()) != seen:
            on_bytes(now - seen)
            seen = now
        if block:
            yield block


def _unpacked(path: Path, stored: IO[bytes]) -> _Readable:
    _, packed = split_suffix(path)
    if packed == ".gz":
        return gzip.open(stored, "rb")
    if packed == ".xz":
        return lzma.open(stored, "rb")
    return ZstFile(path, stored) if packed == ".zst" else stored


class ZstFile:
    """The content of a ``.zst`` file of one or more frames, read forward; EOFError if damaged or cut short.

    The library's own reader ends in silence when a frame is cut short, so each frame has its own decompressor.
    """

    def __init__(self, path: Path, stored: IO[bytes]) -> None:
        self._library = import_extra("zstandard", "reading .zst files", path)
        self._stored, self._held = stored, b""
        self._frame: Any = None

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes of content, none at the end."""
        while not self._held:
            if not (data := self._stored.read(_PACKED_BYTES)):
                if self._frame is not None:
                    raise EOFError("the file ends within a frame")
                return b""
            self._held = b"".join(self._unpacked(data))
        block, self._held = self._held[:size], self._held[size:]
        return block

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                if self._frame is None:
                    self._frame = self._library.ZstdDecompressor().decompressobj()
                yield self._frame.decompress(data)
                data = self._frame.unused_data
                if self._frame.eof:
                    self._frame = None
        except self._library.ZstdError as error:
            raise EOFError(str(error)) from error


def byte_lines(
    span: ByteSpan, problems: Problems, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """(offset, number from 1, line with its newline), cut at ``\\n`` only.

    A line longer than ``DOCUMENT_LIMIT`` is recorded in ``problems`` and left out.
    """
    number = 0
    held: list[bytes] = []  # an unfinished line
    held_bytes = start = 0
    for offset, block in span.blocks(on_bytes):
        *whole, rest = block.split(b"\n")
        for line in whole:
            number += 1
            if not held_bytes:
                yield offset, number, line + b"\n"
            elif held_bytes + len(line) > DOCUMENT_LIMIT:
                _too_long(span, number, problems)
            else:
                yield start, number, b"".join((*held, line, b"\n"))
            held, held_bytes = [], 0
            offset += len(line) + 1
        if rest:
            start = start if held_bytes else offset
            held_bytes += len(rest)
            held = [*held, rest] if held_bytes <= DOCUMENT_LIMIT else []
    if held_bytes > DOCUMENT_LIMIT:
        _too_long(span, number + 1, problems)
    elif held_bytes:
        yield start, number + 1, b"".join(held)


def _too_long(span: ByteSpan, number: int, problems: Problems) -> None:
    problems.add(f"the line is longer than {DOCUMENT_LIMIT >> 20} MiB", span.path, span.where(number))


def text_lines(
    span: ByteSpan, problems: Problems, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, int, str]]:
    """:func:`byte_lines` as text; a line that is not UTF-8 is recorded in ``problems`` and left out."""
    for offset, number, line in byte_lines(span, problems, on_bytes):
        if (text := decode_line(line, span, number, problems)) is not None:
            yield offset, number, text


def decode_line(line: bytes, span: ByteSpan, number: int, problems: Problems) -> str | None:
    """A line as text, None after it was recorded as not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"{error.reason} at byte {error.start}"
        problems.add("the line is not valid UTF-8", span.path, span.where(number), detail)
        return None
