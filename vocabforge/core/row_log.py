"""Rows kept as they come: an append-only file of JSON lines that survives being killed at any byte."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .errors import DataError
from .files import disk_errors

_SYNC_S = 5.0  # what a power cut can lose; a killed process loses no line
# What taking over a line may raise where it holds something else than a row.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, DataError)


class Place(NamedTuple):
    """Where a line stands, in bytes, its line break included."""

    start: int
    length: int


class RowLog:
    """Lines stay on the disk; a line is written by one call when it is complete. One process may have it open.

    Before the first row is added, the file must have been read, or cleared: it may end in a cut line.

    Args:
        path: in a folder that exists; the file is made where it is absent.

    Raises:
        VocabForgeError: the disk is full or refuses to be written to; every method may raise it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._end, self._synced = 0, time.monotonic()

    def fileno(self) -> int:
        """The open file's descriptor, for a lock."""
        return self._file

    def read(self, take: Callable[[Any, Place], object]) -> int:
        """Hand over every whole line; a last line that a kill cut short is removed.

        Args:
            take: gets the parsed line and its place; may raise what a line that is no row of its brings about.

        Returns:
            how many lines are damaged; they stay where they are.
        """
        damaged = 0
        with disk_errors(self.path), open(os.dup(self._file), "rb") as lines:
            lines.seek(0)
            self._end = 0
            for line in lines:
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, self._end)
                    break
                try:
                    take(json.loads(line), Place(self._end, len(line)))
                except _DAMAGE:
                    damaged += 1
                self._end += len(line)
        return damaged

    def clear(self) -> None:
        """Drop all lines."""
        with disk_errors(self.path):
            os.ftruncate(self._file, 0)
        self._end = 0

    def add(self, line: bytes) -> Place:
        """Write one line, its line break included."""
        with disk_errors(self.path):
            try:
                written = os.write(self._file, line)
                while written < len(line):  # a nearly full disk; the next attempt says so
                    written += os.write(self._file, line[written:])
            except OSError:  # a row that is added later must not stand behind half a line
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise
            place = Place(self._end, len(line))
            self._end += len(line)
            if time.monotonic() - self._synced > _SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        return place

    def get(self, place: Place) -> Any:
        """The parsed line of a place."""
        return json.loads(os.pread(self._file, place.length, place.start))

    def close(self) -> None:
        """Flush to the disk and let go; may be called again."""
        if self._file >= 0:
            try:
                with disk_errors(self.path):
                    os.fsync(self._file)
            finally:
                os.close(self._file)
                self._file = -1
