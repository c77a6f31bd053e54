"""Resumable runs: a run identity and an append-only row log that survives a kill at any byte."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .console import say
from .distributed import rank
from .errors import DataError, UsageError
from .files import atomic_write, atomic_write_json, disk_errors, parse_json, read_json
from .lock import only_writer

_SYNC_S = 5.0  # seconds of work a power loss can cost; a killed process loses no line
# Errors that mean a line is not a valid row.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, DataError)


class LinePosition(NamedTuple):
    """Position of a line in bytes, including its newline."""

    start: int
    length: int


class RowLog:
    """Append-only file of complete lines, open in at most one process.

    Call :meth:`read` or :meth:`clear` before the first :meth:`add`: the last line may be truncated.

    Args:
        path: log file, created if absent; its folder must exist.

    Raises:
        VocabForgeError: the disk is full or not writable; raised by every method.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk_errors(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._end, self._synced = 0, time.monotonic()

    def read(self, take: Callable[[Any, LinePosition], object]) -> int:
        """Pass every complete line to ``take`` and remove a truncated last line.

        Args:
            take: called with the parsed line and its position. May raise if the line is not a valid row.

        Returns:
            The number of damaged lines, which are left in the file.
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
                    take(json.loads(line), LinePosition(self._end, len(line)))
                except _DAMAGE:
                    damaged += 1
                self._end += len(line)
        return damaged

    def clear(self) -> None:
        """Delete all lines."""
        with disk_errors(self.path):
            os.ftruncate(self._file, 0)
        self._end = 0

    def add(self, line: bytes) -> LinePosition:
        """Append one line, which must include its newline."""
        with disk_errors(self.path):
            try:
                written = os.write(self._file, line)
                while written < len(line):  # nearly full disk: the next write raises
                    written += os.write(self._file, line[written:])
            except OSError:  # later rows must not follow a partial line
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._end)
                raise
            place = LinePosition(self._end, len(line))
            self._end += len(line)
            if time.monotonic() - self._synced > _SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()
        return place

    def get(self, place: LinePosition) -> Any:
        """Return the parsed line at a position."""
        return json.loads(os.pread(self._file, place.length, place.start))

    def close(self) -> None:
        """Flush to disk and close the file; may be called repeatedly."""
        if self._file >= 0:
            try:
                with disk_errors(self.path):
                    os.fsync(self._file)
            finally:
                os.close(self._file)
                self._file = -1


class RunJournal:
    """Finished work of an interrupted run, stored next to its output (``OUTPUT.partial``).

    One file holds the identity of the run: all settings that determine its rows. The other holds one JSON
    line per finished piece of work. The folder is locked, so only one process works in it. Subclasses
    override :meth:`take` to check rows and call :meth:`put` for new ones. After the artefact is written,
    :meth:`remove` deletes the folder. A journal without rows is deleted when it is closed.

    Args:
        folder: created if absent.
        identity: JSON values; a run with a different identity is rejected.
        fresh: discard the rows of an interrupted run.

    Attributes:
        places: key -> position of its row in the file.

    Raises:
        UsageError: the rows have a different identity (all differences are listed), another process works
            in the folder, or the folder contains other files.
        DataError: the identity cannot be read.
    """

    header, rows_file = "run.json", "rows.jsonl"
    others: tuple[str, ...] = ()

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.folder = folder
        self.places: dict[Hashable, LinePosition] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(only_writer(folder))
            if fresh:
                self._discard()
            if strange := self._strange():
                raise UsageError(
                    "the folder for an unfinished run holds something else",
                    got=", ".join(strange[:8]),
                    source=folder,
                    remedy="move it away, or choose another --output",
                )
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            file = folder / self.header
            former = read_json(file, "identity of the unfinished run") if file.exists() else None
            self._rows = RowLog(folder / self.rows_file)
            stack.callback(self._rows.close)
            if former is not None and (damaged := self._rows.read(self.take)):
                say(f"{damaged} damaged lines in {self._rows.path}: repeating this work")
            self._agree(former, json.loads(json.dumps(dict(identity))))
            self._open, self._held = True, stack.pop_all()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, key: object) -> bool:
        return key in self.places

    def take(self, row: Any, place: LinePosition) -> None:
        """Accept a row of the interrupted run; an exception marks the row as damaged."""
        self.places.setdefault(row["key"], place)

    def put(self, key: Hashable, line: bytes) -> None:
        """Append the row of ``key``: one JSON line including its newline."""
        self.places[key] = self.append(line)

    def append(self, line: bytes) -> LinePosition:
        """Append a line without a key."""
        return self._rows.add(line)

    def row(self, key: Hashable) -> Any:
        """Return the row of a key.

        Raises:
            KeyError: the key has no row.
        """
        return self._rows.get(self.places[key])

    def close(self) -> None:
        """Flush and unlock; may be called repeatedly."""
        self._leave(drop=not self)

    def remove(self) -> None:
        """Delete the journal after its artefact is written."""
        self._leave(drop=True)

    def _leave(self, *, drop: bool) -> None:
        with self._held.pop_all():
            if self._open:
                self._open = False
                self._rows.close()
                if drop:
                    shutil.rmtree(self.folder, ignore_errors=True)

    def _agree(self, former: Any, identity: Mapping[str, Any]) -> None:
        if former is not None and self:
            check_identity(
                former,
                identity,
                source=self.folder,
                remedy="resume with the previous settings, choose another --output, or restart with --fresh",
            )
        if not self:
            self._rows.clear()
            atomic_write_json(self.folder / self.header, identity)

    def _strange(self) -> list[str]:
        """Return names of files that do not belong to the journal; hidden files come from killed writes."""
        known = (self.header, self.rows_file, *self.others)
        inside = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(
            path.name
            for path in inside
            if path.name[0] != "." and (path.name not in known or not path.is_file())
        )

    def _discard(self) -> None:
        if self.folder.is_dir() and not self._strange():
            with disk_errors(self.folder):
                shutil.rmtree(self.folder)


def check_identity(former: Any, identity: Any, *, source: Path, remedy: str) -> None:
    """Refuse to resume a run with a different identity.

    Raises:
        UsageError: lists every setting that differs.
    """
    if changed := differences(former, identity):
        raise UsageError(
            "the run in this folder has other settings or inputs",
            got="\n    ".join(["", *changed[:20]]),
            expected="the settings it was started with",
            source=source,
            remedy=remedy,
        )


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """List all leaves that differ between two JSON values, as ``settings.max_new_tokens: 32, now 64``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if old == new else [f"{name}: {_short(old)}, now {_short(new)}"]


def _short(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


class MetricsLog:
    """JSON Lines log that is flushed after every row and written by rank 0 only.

    A truncated last line of a killed run is removed.

    Args:
        keep_until: step of the checkpoint that the run resumes from (0: from the start). Rows of later
            steps are removed atomically because the run writes them again. None keeps all rows.
        again: kinds that are logged after the checkpoint of their step; their rows at ``keep_until`` are
            removed as well.

    Attributes:
        removed: (kind, step) of the removed rows.
        listener: called with every row written (such as a tracker), or None.
    """

    def __init__(self, path: Path, keep_until: int | None = None, again: Collection[str] = ()) -> None:
        self.path = path
        self.removed: frozenset[tuple[str, int]] = frozenset()
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        if rank() == 0:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_file():
                    self.removed = _rewind(path, math.inf if keep_until is None else keep_until, again)

    def write(self, **figures: Any) -> None:
        """Append one row; numbers that are not finite become null because JSON cannot express them."""
        if rank() != 0:
            return
        row = _finite(figures)
        line = json.dumps(row, allow_nan=False) + "\n"
        with disk_errors(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(line)
        if self.listener is not None:
            self.listener(row)


def _rewind(path: Path, step: float, again: Collection[str]) -> frozenset[tuple[str, int]]:
    """Remove a truncated last line, rows after ``step``, and rows of kinds ``again`` at ``step``.

    Returns:
        (kind, step) of the removed rows.
    """
    lines = path.read_bytes().splitlines(keepends=True)
    kept, removed = [], set()
    for line in lines:
        place = _place(line)
        if not line.endswith(b"\n"):
            continue
        if place is not None and (place[1] > step or (place[1] == step and place[0] in again)):
            removed.add(place)
        else:
            kept.append(line)
    if kept != lines:
        atomic_write(path, b"".join(kept))
    return frozenset(removed)


def _place(line: bytes) -> tuple[str, int] | None:
    """Return the (kind, step) of a row; None for lines without a step, which are reported on reading."""
    try:
        row = json.loads(line)
        return str(row.get("kind", "")), int(row["step"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_jsonl_log(path: Path) -> list[dict[str, Any]]:
    """Read a log, dropping a truncated last line.

    Raises:
        DataError: the log is missing, or a line is not a JSON object.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(
            "the log cannot be read",
            got=error.strerror or error,
            expected="a log of JSON lines",
            source=path,
            remedy="check the path",
        ) from error
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # after the last newline: nothing or a truncated line
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            row = str(error)
        if not isinstance(row, dict):
            raise DataError(
                "a line of the log is no JSON object",
                got=row,
                expected="one JSON object per line",
                source=f"{path}:{number}",
            )
        rows.append(row)
    return rows
