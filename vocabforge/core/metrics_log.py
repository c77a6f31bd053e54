"""Append-only JSONL log of figures, one JSON object a line, safe to read while it grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .distributed import rank
from .files import disk_errors


class MetricsLog:
    """Writes one JSON object a line, flushed at once, from rank 0 only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if rank() == 0:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, **figures: Any) -> None:
        if rank() != 0:
            return
        with disk_errors(self.path), open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(figures) + "\n")


def read_jsonl_log(path: Path) -> list[dict[str, Any]]:
    """Read a log back; a last line cut short by a kill is dropped."""
    rows = []
    for line in path.read_text("utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
