"""Append-only JSONL log of figures, one JSON object a line, safe to read while it grows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from .distributed import rank
from .errors import DataError
from .files import atomic_write, disk_errors, parse_json


class MetricsLog:
    """Writes one JSON object a line, flushed at once, from rank 0 only.

    A last line that a killed run cut short is removed, so that the log can go on behind it.

    Args:
        keep_until: the step of the checkpoint that the run goes on from (0: from the start). Rows of later steps,
            which the run will write again, are removed in one atomic step. None keeps every row.
        again: kinds whose rows of that very step are written behind its checkpoint, and so will be again, too.

    Attributes:
        removed: (kind, step) of the rows that were removed.
        listener: also given every row that is written (a tracker); None for nobody.
    """

    def __init__(self, path: Path, keep_until: int | None = None, again: Collection[str] = ()) -> None:
        self.path = path
        self.removed: frozenset[tuple[str, int]] = frozenset()
        self.listener: Callable[[Mapping[str, Any]], None] | None = None
        if rank() == 0:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _drop_cut_line(path)
                if keep_until is not None:
                    self.removed = _drop_later_rows(path, keep_until, again)

    def write(self, **figures: Any) -> None:
        """Append one line; numbers that are not finite become null, as JSON has none."""
        if rank() != 0:
            return
        row = _finite(figures)
        line = json.dumps(row, allow_nan=False) + "\n"
        with disk_errors(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(line)
        if self.listener is not None:
            self.listener(row)


def _drop_cut_line(path: Path) -> None:
    if not path.is_file():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with open(path, "r+b") as handle:
            handle.truncate(data.rfind(b"\n") + 1)


def _drop_later_rows(path: Path, step: int, again: Collection[str]) -> frozenset[tuple[str, int]]:
    """Remove the rows of steps beyond ``step``, and those of kinds ``again`` at it; returns (kind, step) of each."""
    if not path.is_file():
        return frozenset()
    kept, removed = [], set()
    for line in path.read_bytes().splitlines(keepends=True):
        place = _place(line)
        if place is not None and (place[1] > step or (place[1] == step and place[0] in again)):
            removed.add(place)
        else:
            kept.append(line)
    if removed:
        atomic_write(path, b"".join(kept))
    return frozenset(removed)


def _place(line: bytes) -> tuple[str, int] | None:
    """(kind, step) of a row; None for what is no row with a step, which reading will name."""
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
    """Read a log back; a last line cut short by a kill is dropped.

    Raises:
        DataError: no such log, or a line inside it that is not a JSON object.
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
    for number, line in enumerate(lines[:-1], 1):  # behind the last line break: nothing, or a cut line
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                "a line of the log is not JSON",
                got=error,
                expected="a JSON object a line",
                source=f"{path}:{number}",
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                "a line of the log is no JSON object",
                got=row,
                expected="an object",
                source=f"{path}:{number}",
            )
        rows.append(row)
    return rows
