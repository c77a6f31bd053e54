"""Finished work of an evaluation, stored next to its output (``OUTPUT.partial``) until the output is written.

One line for every start of the run, for every question that a method answered or failed to answer in a run,
and for every group of questions that a server answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...core.journal import LinePosition, RunJournal
from ..results.schema import FailureRow


class Key(NamedTuple):
    """Key of a row."""

    run: int
    question_id: int
    method: str


class EvaluationJournal(RunJournal):
    """Rows by :class:`Key`; for arguments and errors see :class:`~vocabforge.core.journal.RunJournal`.

    Attributes:
        failures: question id -> failure, in order of occurrence.
        windows: groups of questions that a server answered concurrently, see ``servers/generator.py``.
        taken_over: number of answers from earlier processes.
        resumed: number of times the run was resumed.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.failures: dict[int, FailureRow] = {}
        self.windows: list[dict[str, Any]] = []
        self._starts = 0
        super().__init__(folder, identity, fresh=fresh)
        self.resumed = self._starts if self else 0
        self.taken_over = len(self.places)
        try:
            self.append(_line({"started": time.time()}))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.places) + len(self.failures)

    def add(self, key: Key, *, answer: Mapping[str, Any], detail: Mapping[str, Any]) -> None:
        """Append an answer row and its row of the side file; raise VocabForgeError if they cannot be written."""
        self.put(key, _line({**key._asdict(), "answer": answer, "detail": detail}))

    def fail(self, failure: FailureRow) -> None:
        """Append the reason for an unanswered question; raises like :meth:`add`."""
        self.append(_line({"failure": failure.model_dump()}))
        self.failures[failure.question_id] = failure

    def add_window(self, window: Mapping[str, Any]) -> None:
        """Append a server's counters of a window; raises like :meth:`add`."""
        self.append(_line({"window": dict(window)}))
        self.windows.append(json.loads(json.dumps(window)))

    def server_of(self, method: str) -> Mapping[str, Any] | None:
        """Return the description of the server that last answered for a method; None without answers."""
        return next(
            (window["server"] for window in reversed(self.windows) if window["method"] == method), None
        )

    def forget(self) -> None:
        """Drop all rows: without answers there is nothing to resume."""
        self.places, self.failures = {}, {}

    def take(self, row: Any, place: LinePosition) -> None:
        if "started" in row:
            self._starts += 1
        elif "window" in row:
            row["window"]["server"].keys()  # raises for invalid rows
            self.windows.append(row["window"])
        elif "failure" in row:
            failure = FailureRow.model_validate(row["failure"], strict=True)
            self.failures.setdefault(failure.question_id, failure)
        else:
            for part in ("answer", "detail"):
                row[part]["choices"][0].keys()  # raises for invalid rows
            key = Key(int(row["run"]), int(row["question_id"]), str(row["method"]))
            self.places.setdefault(key, place)


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode("ascii")
