"""Where a large plain file can be divided, found by looking around a place, never from the file's start."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from . import pieces, reading
from .document import Cutter, SourceOptions
from .pieces import is_blank
from .reading import file_size, unreadable

_WINDOW = 64 << 10
_SHORT_LINE = 64 << 10
_CONTINUATION = bytes(range(0x80, 0xC0))

Finder = Callable[[IO[bytes], int, int], int | None]
"""(file, nominal byte, size) -> byte at or behind it where the file may be divided; ``size`` when there is
none up to the end, None when none was found nearby."""


def split_points(path: Path, every: int, find: Finder) -> list[int]:
    """Bytes, ascending, at which a file is divided near each multiple of ``every`` (0 and its end excluded).

    Raises:
        DataError: the file cannot be read.
    """
    size = file_size(path)
    points: list[int] = []
    try:
        with open(path, "rb") as handle:
            nominal = every
            while nominal < size:
                point = find(handle, nominal, size)
                if point is not None and point >= size:
                    break
                if point is not None:
                    points.append(point)
                nominal = max((point or 0) + 1, nominal + every)
    except OSError as error:
        raise unreadable(path, error) from error
    return points


def text_points(path: Path, every: int, options: SourceOptions, cut: Cutter | None) -> list[int]:
    """:func:`split_points` of a text file, by its unit; none where no place is certain."""
    if options.separator is not None or file_size(path) <= every:
        return []
    if options.text_unit == "line":
        return split_points(path, every, after_newline)
    if options.text_unit == "paragraph":
        return split_points(path, every, after_blank_line)
    if cut is None or is_blank(path):  # a part cannot know whether the whole file is blank
        return []
    return split_points(path, every, lambda handle, at, size: at_safe_cut(handle, at, size, cut))


def after_newline(handle: IO[bytes], at: int, size: int) -> int:
    """The first place at or behind ``at`` that has a newline before it."""
    handle.seek(at - 1)
    place = at - 1
    while block := handle.read(_WINDOW):
        if (found := block.find(b"\n")) >= 0:
            return place + found + 1
        place += len(block)
    return size


def after_blank_line(handle: IO[bytes], at: int, size: int) -> int:
    """The first place at or behind ``at`` with a blank line before it, which parts paragraphs."""
    handle.seek(after_newline(handle, at, size))
    begins = True
    while line := handle.readline(_SHORT_LINE):
        ends = line.endswith(b"\n")
        if begins and ends and _blank(line):
            return handle.tell()
        begins = ends
    return size


def _blank(line: bytes) -> bool:
    try:
        return not line.decode("utf-8").strip()
    except UnicodeDecodeError:  # it will be left out, and parts nothing
        return False


def at_safe_cut(handle: IO[bytes], at: int, size: int, cut: Cutter) -> int | None:
    """The first place behind ``at`` where the text may be cut, seen in a window that grows.

    The place lies in whole valid lines, so that no line is left out on one side only, or in a line that is
    too long to be left out. None when the window shows none: the part becomes longer, not wrong.
    """
    window = _WINDOW
    while window <= reading.DOCUMENT_LIMIT:
        handle.seek(at - 1)
        data = handle.read(window + 2)
        ends = at - 1 + len(data) >= size
        for start, text in _valid_runs(data, at - 1, ends):
            if (place := _cut_within(text, cut)) is not None:
                return start + place
        part = data[1 : pieces.LONG_LINE + 2]
        if len(part) > pieces.LONG_LINE and b"\n" not in part:
            return _cut_long_line(part, at, cut)
        if ends:
            return size
        window *= 4
    return None


def _cut_within(text: str, cut: Cutter) -> int | None:
    """Bytes before the first allowed place with ``cut.margin`` characters of the text on both sides."""
    place = cut.first(text, max(1, cut.margin))
    if place is None or place + cut.margin > len(text):
        return None
    return len(text[:place].encode("utf-8"))


def _cut_long_line(part: bytes, offset: int, cut: Cutter) -> int | None:
    skipped = len(part) - len(part.lstrip(_CONTINUATION))  # the end of a character
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(part[skipped:])
    except UnicodeDecodeError:
        return None
    place = _cut_within(text, cut)
    return None if place is None else offset + skipped + place


def _valid_runs(data: bytes, offset: int, ends: bool) -> Iterator[tuple[int, str]]:
    """(offset, text) of runs of whole valid lines; the first byte belongs to the line before."""
    start = data.find(b"\n") + 1
    if not start:
        return
    held: list[str] = []
    begin = place = offset + start
    *lines, rest = data[start:].split(b"\n")
    for line in [*(line + b"\n" for line in lines), *([rest] if ends else [])]:
        try:
            held.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            yield begin, "".join(held)
            held, begin = [], place + len(line)
        place += len(line)
    yield begin, "".join(held)
