"""Files in, lines out: plain or compressed, with a count of what cannot be read."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ..core.errors import DataError, UsageError
from ..core.progress import say

TEXT_SUFFIXES = (".txt", ".text")
LINE_SUFFIXES = (".jsonl", ".ndjson")
JSON_SUFFIXES = (".json",)
PACKED_SUFFIXES = (".gz", ".xz")
_KINDS = ", ".join((*TEXT_SUFFIXES, *LINE_SUFFIXES, *JSON_SUFFIXES))
SUPPORTED = f"{_KINDS}, each also with {' or '.join(PACKED_SUFFIXES)}"
_BOM = b"\xef\xbb\xbf"


@dataclass
class Problems:
    """Counts what was skipped, says the first few on stderr, or raises at once when ``strict``."""

    strict: bool = False
    shown: int = 5
    kinds: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.kinds.values())

    def add(self, kind: str, source: Path, line: int, detail: object = None) -> None:
        """Record one problem.

        Raises:
            DataError: ``strict`` is on.
        """
        where = f"{source}:{line}"
        if self.strict:
            raise DataError(
                kind,
                got=detail,
                source=where,
                remedy="mend the input, or leave --strict out to skip such lines",
            )
        self.kinds[kind] += 1
        if len(self.first) < self.shown:
            self.first.append(f"{where}: {kind}" + (f" ({detail})" if detail is not None else ""))
            say(f"Skipped {self.first[-1]}")
        elif self.total == self.shown + 1:
            say("Skipped more of the like; only their number is reported.")

    def summary(self) -> str | None:
        """One line with the number of each kind, None when all was well."""
        if not self.kinds:
            return None
        return "Skipped " + "; ".join(f"{count:,} x {kind}" for kind, count in self.kinds.most_common())


def byte_lines(path: Path, on_bytes: Callable[[int], None] | None) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line with its newline) of a plain or compressed file, cut at ``\\n`` only."""
    seen = 0
    number = 0
    try:
        with open(path, "rb") as stored, _unpacked(path, stored) as handle:
            for number, line in enumerate(handle, start=1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                yield number, line
                if on_bytes is not None and (now := stored.tell()) != seen:
                    on_bytes(now - seen)
                    seen = now
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            "the compressed file is damaged or cut short",
            got=f"{error} (after line {number:,})",
            source=path,
            remedy="fetch or pack it again; nothing of this run was kept",
        ) from error
    except OSError as error:
        raise DataError("the input cannot be read", got=error.strerror or error, source=path) from error


def _unpacked(path: Path, stored: IO[bytes]) -> IO[bytes]:
    _, packed = split_suffix(path)
    if packed == ".gz":
        return gzip.open(stored, "rb")  # type: ignore[return-value]
    if packed == ".xz":
        return lzma.open(stored, "rb")
    return stored


def text_lines(
    path: Path, problems: Problems, on_bytes: Callable[[int], None] | None
) -> Iterator[tuple[int, str]]:
    """:func:`byte_lines` as text; a line that is not UTF-8 is recorded in ``problems`` and left out."""
    for number, line in byte_lines(path, on_bytes):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            problems.add("the line is not valid UTF-8", path, number, f"{error.reason} at byte {error.start}")


def paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """(first line, text) of each run of lines that are not blank."""
    held: list[str] = []
    start = 1
    for number, line in lines:
        if line.strip():
            if not held:
                start = number
            held.append(line)
        elif held:
            yield start, "".join(held).rstrip("\r\n")
            held = []
    yield start, "".join(held).rstrip("\r\n")


def separated(lines: Iterable[tuple[int, str]], separator: str) -> Iterator[tuple[int, str]]:
    """(first line, text) of each piece between separators, without the newlines around it."""
    if "\n" in separator:  # it can run over line ends: look at the whole text
        lines = [(1, "".join(line for _, line in lines))]
    held: list[str] = []
    start = 1
    for number, line in lines:
        *closed, rest = line.split(separator)
        for piece in closed:
            yield start, "".join([*held, piece]).strip("\r\n")
            held, start = [], number
        if not held and not rest.strip("\r\n"):
            start = number + 1  # the newline after a separator belongs to no document
        held.append(rest)
    yield start, "".join(held).strip("\r\n")


def split_suffix(path: Path) -> tuple[str, str]:
    """(kind of content, kind of compression) by the file's name, each ``""`` when not supported."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in PACKED_SUFFIXES else ""
    content = suffixes[-1] if suffixes else ""
    return (content if content in TEXT_SUFFIXES + LINE_SUFFIXES + JSON_SUFFIXES else ""), packed


def expand_paths(paths: Iterable[Path]) -> list[Path]:
    """The supported files among ``paths``; folders are searched through, sorted by name; each file once.

    Raises:
        DataError: a path is missing or of an unsupported kind, a folder holds no supported file.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*")
                if file.is_file() and split_suffix(file)[0] and not file.name.startswith(".")
            )
            if not inside:
                raise DataError("the folder holds no supported file", got=path, expected=SUPPORTED)
        elif not path.exists():
            raise DataError("the input is missing", expected=path, remedy="check the path")
        elif not split_suffix(path)[0]:
            raise DataError(
                "this kind of file is not supported",
                got=path,
                expected=SUPPORTED,
                remedy="unpack or rename it, so that its name says what it holds",
            )
        else:
            inside = [path]
        for file in inside:
            found.setdefault(file.resolve(), file)
    if not found:
        raise UsageError("no input was given", expected="--input PATH")
    return list(found.values())
