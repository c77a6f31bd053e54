"""Append-only JSONL log of figures, one JSON object a line, safe to read while it grows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from .distributed import rank
from .errors import DataError
from .files import disk_errors


class MetricsLog:
    """Writes one JSON object a line, flushed at once, from rank 0 only.

    A last line that a killed run cut short is removed, so that the log can go on behind it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if rank() == 0:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _drop_cut_line(path)

    def write(self, **figures: Any) -> None:
        """Append one line; numbers that are not finite become null, as JSON has none."""
        if rank() != 0:
            return
        line = json.dumps(_finite(figures), allow_nan=False) + "\n"
        with disk_errors(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(line)


def _drop_cut_line(path: Path) -> None:
    if not path.is_file():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with open(path, "r+b") as handle:
            handle.truncate(data.rfind(b"\n") + 1)


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
        raise DataError("the log cannot be read", got=error.strerror or error, source=path) from error
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # behind the last line break: nothing, or a cut line
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError("a line of the log is not JSON", got=error, source=f"{path}:{number}") from error
        if not isinstance(row, dict):
            raise DataError("a line of the log is no JSON object", got=row, source=f"{path}:{number}")
        rows.append(row)
    return rows
