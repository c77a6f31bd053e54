"""Lines put together to documents: paragraphs, and what stands between separators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from . import bytes as reading

Place = TypeVar("Place")


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
