"""Read bytes and lines from plain or compressed files or byte ranges, in bounded memory."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...core.console import say
from ...core.errors import DataError
from .inputs import import_extra, split_suffix
from .remote import open_bytes

BLOCK_BYTES = 1 << 20
DOCUMENT_LIMIT = 64 << 20
"""Maximum size of a line, row, paragraph or text between two cuts, in bytes."""
BOM = b"\xef\xbb\xbf"
_LOOKED_AT = 64 << 10  # bytes at the start of a file that are inspected
# These are not valid UTF-8, so no text begins with them.
_PACKED = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_MARK_BYTES = 6  # of the longest of them, and above a byte order mark

OnBytes = Callable[[int], None]


NOT_READ = "not read: "
"""Prefix of :class:`Problems` kinds for unread keys, followed by ``KEY in turns`` or ``KEY in rows``."""


@dataclass
class Problems:
    """Counter of skipped inputs and of unread keys in used rows; prints the first ``shown`` skips to stderr.

    With ``strict``, the first problem of either type raises.
    """

    strict: bool = False
    shown: int = 5
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of skipped rows, lines and files."""
        return sum(count for kind, count in self.kinds.items() if not kind.startswith(NOT_READ))

    def take(self, error: DataError, source: Path, line: int | str) -> None:
        """Record the error of one row.

        Raises:
            DataError: ``strict`` is on.
        """
        self.add(error.message, source, line, error.got, error.expected)

    def add(
        self, kind: str, source: Path, line: int | str, detail: object = None, expected: object = None
    ) -> None:
        """Record one problem; ``line`` is a number or a description of the place.

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
                remedy="fix the input, or omit --strict to skip such lines",
            )
        self.kinds[kind] += 1
        if len(self.first) < self.shown:
            self.first.append(f"{where}: {kind}" + (f" ({detail})" if detail is not None else ""))
            say(f"Skipped {self.first[-1]}")
        elif self.shown and self.total == self.shown + 1:
            say("Skipped more lines; only their number is reported.")

    def unread(self, counts: Mapping[str, int], source: Path, line: int | str) -> None:
        """Record unread keys of a used row: counts by ``KEY in turns`` or ``KEY in rows``.

        Raises:
            DataError: ``strict`` is on.
        """
        if counts and self.strict:
            raise DataError(
                "the row has keys that are not read",
                got=", ".join(key.rpartition(" in ")[0] for key in counts),
                source=f"{source}:{line}",
                remedy="remove them, or omit --strict to ignore and count them",
            )
        self.kinds.update({f"{NOT_READ}{key}": count for key, count in counts.items()})

    def summary(self) -> str | None:
        """Return lines with the count of each kind, or None without problems."""
        return summarize_problems(self.kinds)


def summarize_problems(kinds: Mapping[str, int]) -> str | None:
    """Return the text of :meth:`Problems.summary` for these counts."""
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
    """Return the stored size of a file in bytes.

    Raises:
        DataError: the file is missing or inaccessible.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def no_text(path: Path) -> str | None:
    """Return why the start of a file is not UTF-8 text, or None if it may be.

    Raises:
        DataError: see :meth:`ByteSpan.blocks`.
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
    """Return the error for a file that the system cannot read."""
    return DataError(
        "the input cannot be read",
        got=error.strerror or error,
        source=path,
        remedy="check the path, its permissions and the disk",
    )


@dataclass(frozen=True)
class ByteSpan:
    """Bytes [start, stop) of a file; ``start`` is 0 if it is compressed, ``stop`` is None for the end."""

    path: Path
    start: int = 0
    stop: int | None = None

    def where(self, number: int) -> int | str:
        """Return the label of a line: its number from 1, relative to ``start`` if that is not 0."""
        return number if self.start == 0 else f"byte {self.start}+line {number}"

    def blocks(self, on_bytes: OnBytes | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield (offset in the content, bytes) of consecutive blocks, without a leading byte order mark.

        Raises:
            DataError: the file is unreadable, damaged, truncated, shorter than ``stop``, or compressed
                without the suffix for it.
        """
        for at, block in self._read(on_bytes, unpacked=True):
            suffix = next((_PACKED[magic] for magic in _PACKED if at == 0 and block.startswith(magic)), None)
            if suffix is not None:
                raise DataError(
                    "the file is compressed, but its name lacks the suffix",
                    got=f"{suffix[1:]} data",
                    source=self.path,
                    remedy=f"rename it to {self.path.name}{suffix}",
                )
            bare = block[len(BOM) :] if at == 0 and block.startswith(BOM) else block
            yield at + len(block) - len(bare), bare

    def stored_blocks(self) -> Iterator[bytes]:
        """Return blocks of the stored bytes, compressed or not; raises like :meth:`blocks`."""
        return (block for _, block in self._read(None, unpacked=False))

    def _read(self, on_bytes: OnBytes | None, *, unpacked: bool) -> Iterator[tuple[int, bytes]]:
        at = seen = self.start
        try:
            with open_bytes(self.path) as stored:
                handle = _unpacked(self.path, stored) if unpacked else stored
                stored.seek(self.start)
                while True:
                    most = BLOCK_BYTES if self.stop is None else min(BLOCK_BYTES, self.stop - at)
                    block = handle.read(most)
                    while (
                        at == 0 and 0 < len(block) < _MARK_BYTES and (more := handle.read(most - len(block)))
                    ):
                        block += more  # some servers send less than asked for
                    # The end of a compressed file is read after its last block.
                    if on_bytes is not None and (now := stored.tell()) != seen:
                        on_bytes(now - seen)
                        seen = now
                    if not block:
                        break
                    yield at, block
                    at += len(block)
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            # For damage gzip raises BadGzipFile, Arrow a plain OSError without errno.
            unpacking = isinstance(error, gzip.BadGzipFile) or (
                type(error) is OSError and error.errno is None
            )
            if isinstance(error, OSError) and not (unpacking and split_suffix(self.path)[1]):
                raise unreadable(self.path, error) from error
            raise DataError(
                "the compressed file is damaged or cut short",
                got=f"{error} (after {at:,} bytes of content)",
                source=self.path,
                remedy="fetch or pack it again",
            ) from error
        if self.stop is not None and at < self.stop:
            raise DataError(
                "the input has become shorter",
                got=f"{at:,} bytes",
                expected=f"at least {self.stop:,} bytes, as at the start of the run",
                source=self.path,
                remedy="run again when no other process writes to the file",
            )


def _unpacked(path: Path, stored: IO[bytes]) -> Any:
    _, packed = split_suffix(path)
    if packed == ".gz":
        return gzip.open(stored, "rb")
    if packed == ".xz":
        return lzma.open(stored, "rb")
    if packed == ".zst":
        arrow = import_extra("pyarrow", "reading .zst files", path)
        return arrow.CompressedInputStream(arrow.PythonFile(stored, mode="r"), "zstd")
    return stored


def byte_lines(
    span: ByteSpan, problems: Problems, on_bytes: OnBytes | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, number from 1, line with its newline), split at ``\\n`` only.

    A line longer than ``DOCUMENT_LIMIT`` is recorded in ``problems`` and skipped.
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
    """Yield :func:`byte_lines` as text; a line that is not UTF-8 is recorded in ``problems`` and skipped."""
    for offset, number, line in byte_lines(span, problems, on_bytes):
        if (text := decode_line(line, span, number, problems)) is not None:
            yield offset, number, text


def decode_line(line: bytes, span: ByteSpan, number: int, problems: Problems) -> str | None:
    """Return a line as text, or None after recording that it is not UTF-8."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"{error.reason} at byte {error.start}"
        problems.add("the line is not valid UTF-8", span.path, span.where(number), detail)
        return None
