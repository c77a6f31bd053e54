"""What an evaluation has measured so far, kept beside its output until that is whole.

A folder with ``run.json``, which says what is measured, and ``rows.jsonl``, one line for every start of the
run and for every question that one method answered, or could not answer, in one run. A line is written by
one call when it is complete, so a process that is killed at any byte loses what it was working on and
nothing else.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, disk_errors, read_json
from ..core.lock import only_writer
from ..core.progress import say
from ..core.row_log import Place, RowLog, differences
from .results import FailureRow

HEADER, ROWS = "run.json", "rows.jsonl"
MARK, FORMAT = "unfinished evaluation", 1
_FRESH = "choose another --output, or start over with --fresh"


class Key(NamedTuple):
    """What one row is about."""

    run: int
    question_id: int
    method: str


class Kept(NamedTuple):
    """One answered question: its answer row and its row of the side file."""

    answer: dict[str, Any]
    detail: dict[str, Any]


class Journal:
    """Rows by key; they stay on the disk, only their places are held. See :func:`open_journal`.

    Attributes:
        failures: ``FailureRow``'s fields by question id, in the order in which they were met.
        taken_over: answers that an earlier process left.
        resumed: how often the run was interrupted and went on.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.failures: dict[int, dict[str, Any]] = {}
        self.resumed = 0
        self._places: dict[Key, Place] = {}
        self._starts = 0
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        header = _read_header(folder)
        self._rows = RowLog(folder / ROWS)
        try:
            if header is not None and (damaged := self._rows.read(self._take)):
                say(f"{damaged} damaged lines in {self._rows.path}: what they held is measured again")
            self._agree(header, json.loads(json.dumps(dict(identity))))
            self.resumed = self._starts if self else 0
            self.taken_over = len(self._places)
            self._append({"started": time.time()})
        except BaseException:
            self._rows.close()
            raise

    def __len__(self) -> int:
        """Answers and failures."""
        return len(self._places) + len(self.failures)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def get(self, key: Key) -> Kept:
        """The rows of a key.

        Raises:
            KeyError: there are none.
        """
        row = self._rows.get(self._places[key])
        return Kept(row["answer"], row["detail"])

    def add(self, key: Key, kept: Kept) -> None:
        """Keep the rows of a key.

        Raises:
            VocabForgeError: the disk is full or refuses to be written to.
        """
        self._places[key] = self._append({**key._asdict(), **kept._asdict()})

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Keep why a question could not be answered. Raises as :meth:`add`."""
        self._append({"failure": dict(failure)})
        self.failures[failure["question_id"]] = dict(failure)

    def close(self) -> None:
        """Flush to the disk; a journal without rows leaves nothing behind."""
        self._rows.close()
        if not self:
            shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self) -> None:
        """Drop all rows: of nothing answered there is nothing to go on from."""
        self._places, self.failures = {}, {}

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the journal of a run whose artefact is in place; one that a process works in is left alone."""
        with contextlib.suppress(UsageError), only_writer(folder):
            _discard(folder)

    def _append(self, row: Mapping[str, Any]) -> Place:
        return self._rows.add((json.dumps(row) + "\n").encode("ascii"))

    def _agree(self, header: Mapping[str, Any] | None, identity: Mapping[str, Any]) -> None:
        """Go on only with what the journal was begun for; without rows it may become any other run's."""
        changed = differences(header["identity"], identity) if header is not None else []
        if changed and self:
            raise UsageError(
                "the unfinished evaluation beside this output measures something else",
                got="\n    ".join(["", *changed]),
                expected="what it was started with",
                source=self.folder,
                remedy=f"give the former settings to go on with it, {_FRESH}",
            )
        if not self:
            self._rows.clear()
            atomic_write_json(self.folder / HEADER, {"kind": MARK, "format": FORMAT, "identity": identity})

    def _take(self, row: Mapping[str, Any], place: Place) -> None:
        """Take one row over; what is none raises."""
        if "started" in row:
            self._starts += 1
            return
        if "failure" in row:
            failure = FailureRow.model_validate(row["failure"], strict=True)
            self.failures.setdefault(failure.question_id, failure.model_dump())
            return
        key = Key(int(row["run"]), int(row["question_id"]), str(row["method"]))
        for part in Kept._fields:
            _ = row[part]["choices"][0].keys()  # what is no row raises here
        self._places.setdefault(key, place)


@contextlib.contextmanager
def open_journal(folder: Path, identity: Mapping[str, Any], *, fresh: bool = False) -> Iterator[Journal]:
    """The journal in ``folder``, made where there is none, held by this process alone.

    Args:
        identity: everything that decides the figures, as JSON values.
        fresh: drop what an interrupted run left.

    Raises:
        UsageError: the folder is another run's (every difference is named), holds something else, or another
            process works in it.
        DataError: its header cannot be read.
    """
    with only_writer(folder):
        if fresh:
            _discard(folder)
        journal = Journal(folder, identity)
        try:
            yield journal
        finally:
            journal.close()


def _read_header(folder: Path) -> dict[str, Any] | None:
    """``run.json``; None for a folder without one, whose rows belong to nobody knows what."""
    if strange := _others(folder):
        raise UsageError(
            "the folder for an unfinished evaluation holds something else",
            got=", ".join(strange[:8]),
            source=folder,
            remedy="move it away, or choose another --output",
        )
    file = folder / HEADER
    if not file.exists():
        return None
    try:
        header = read_json(file, "header of the unfinished evaluation")
    except DataError as error:
        raise DataError(error.message, got=error.got, source=file, remedy=_FRESH) from error
    found = (header.get("kind"), header.get("format")) if isinstance(header, dict) else (None, None)
    if found != (MARK, FORMAT) or not isinstance(header.get("identity"), dict):
        raise DataError(
            "the unfinished evaluation was begun by another version",
            got=f"kind {found[0]!r}, format {found[1]!r}",
            expected=f"kind {MARK!r}, format {FORMAT}",
            source=file,
            remedy=_FRESH,
        )
    return dict(header)


def _others(folder: Path) -> list[str]:
    """What stands in a folder and is no journal's; temporary files of a killed write are hidden.

    A device or a pipe by a journal's name would be read without end.
    """
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name[0] != "." and (path.name not in (HEADER, ROWS) or not path.is_file())
    )


def _discard(folder: Path) -> None:
    """Remove a journal; a folder that is none stays."""
    if folder.is_dir() and not _others(folder):
        with disk_errors(folder):
            shutil.rmtree(folder)
