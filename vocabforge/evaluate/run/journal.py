"""What an evaluation has measured so far, kept beside its output (``OUTPUT.partial``) until that is written.

A line for every start of the run, for every question that one method answered, or could not answer, in one run, and
for every group of questions that a server answered.
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
    """What one row is about."""

    run: int
    question_id: int
    method: str


class Kept(NamedTuple):
    """One answered question: its answer row and its row of the side file."""

    answer: dict[str, Any]
    detail: dict[str, Any]


class EvaluationJournal(RunJournal):
    """Rows by :class:`Key`; arguments and errors as for :class:`~vocabforge.core.journal.RunJournal`.

    Attributes:
        failures: ``FailureRow``'s fields by question id, in the order in which they occurred.
        windows: of questions that a server answered side by side, see ``servers/generator.py``.
        taken_over: answers of an earlier process. resumed: how often the run was resumed.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.failures: dict[int, dict[str, Any]] = {}
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

    def get(self, key: Key) -> Kept:
        """The rows of a key; KeyError if there are none."""
        row = self.row(key)
        return Kept(row["answer"], row["detail"])

    def add(self, key: Key, kept: Kept) -> None:
        """Append the rows of a key; VocabForgeError if the disk refuses."""
        self.put(key, _line({**key._asdict(), **kept._asdict()}))

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Append why a question could not be answered. Raises as :meth:`add`."""
        self.append(_line({"failure": dict(failure)}))
        self.failures[failure["question_id"]] = dict(failure)

    def add_window(self, window: Mapping[str, Any]) -> None:
        """Append what a server did in a window. Raises as :meth:`add`."""
        self.append(_line({"window": dict(window)}))
        self.windows.append(json.loads(json.dumps(window)))

    def server_of(self, method: str) -> Mapping[str, Any] | None:
        """What the server was that last answered for a method; None if none did."""
        return next((one["server"] for one in reversed(self.windows) if one["method"] == method), None)

    def forget(self) -> None:
        """Drop all rows: if nothing was answered, there is nothing to resume."""
        self.places, self.failures = {}, {}

    def take(self, row: Any, place: LinePosition) -> None:
        if "started" in row:
            self._starts += 1
        elif "window" in row:
            row["window"]["server"].keys()  # what is no row raises here
            self.windows.append(row["window"])
        elif "failure" in row:
            failure = FailureRow.model_validate(row["failure"], strict=True)
            self.failures.setdefault(failure.question_id, failure.model_dump())
        else:
            for part in Kept._fields:
                row[part]["choices"][0].keys()  # what is no row raises here
            key = Key(int(row["run"]), int(row["question_id"]), str(row["method"]))
            self.places.setdefault(key, place)


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode("ascii")
