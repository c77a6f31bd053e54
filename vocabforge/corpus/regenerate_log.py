"""The answers of a run, kept as they come: an append-only file that survives being killed at any byte."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ..core.differences import differences
from ..core.errors import UsageError
from ..core.files import atomic_write_json, disk_errors, read_json
from ..core.progress import say
from ..core.row_log import Place, RowLog
from .regenerate_check import check_message, token_count
from .regenerate_rows import Answer, json_line

ANSWERS = "answers.jsonl"
SETTINGS = "settings.json"
_FORMAT = 1


class AnswerLog:
    """Finished answers by the key of their request.

    They stay on the disk, only their places are held. A damaged line is passed over: its request is made again.

    Args:
        folder: made where absent.
        settings: what must be equal for the answers to be used.

    Raises:
        UsageError: the folder holds answers to other settings or inputs, or another run writes to it.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder = folder
        self._places: dict[bytes, Place] = {}
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._rows = RowLog(folder / ANSWERS)
        try:
            _lock(self._rows.fileno(), folder)
            self._agree(settings)
            if damaged := self._rows.read(self._take):
                say(f"{damaged} damaged lines in {self._rows.path}: their requests are made again")
        except BaseException:
            self._rows.close()
            raise

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> Answer | None:
        """The answer to a request, None while there is none."""
        place = self._places.get(bytes.fromhex(key))
        return None if place is None else _answer(self._rows.get(place))

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer; a second one to the same request is not kept."""
        if bytes.fromhex(key) in self._places:
            return
        line = json_line({"key": key, "message": answer.message, **answer.facts()})
        self._places[bytes.fromhex(key)] = self._rows.add(line)

    def close(self) -> None:
        """Flush to the disk and let go; may be called again."""
        self._rows.close()

    def remove(self) -> None:
        """Forget all answers: what they were for is written."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _agree(self, settings: Mapping[str, Any]) -> None:
        file = self.folder / SETTINGS
        mine = json.loads(json.dumps({"format": _FORMAT, **settings}))
        if not file.exists():
            self._rows.clear()  # answers to nobody knows what
            atomic_write_json(file, mine)
            return
        changed = differences(read_json(file, "settings of the unfinished run"), mine)
        if changed:
            raise UsageError(
                "the unfinished run in this folder has other settings or inputs",
                got="; ".join(changed[:8]) + (f"; and {len(changed) - 8} more" if len(changed) > 8 else ""),
                expected="what it was started with",
                source=self.folder,
                remedy="give the former settings, choose another --output, or start over with --fresh",
            )

    def _take(self, row: Mapping[str, Any], place: Place) -> None:
        """Hold the place of one answer; what is none raises."""
        _answer(row)
        self._places.setdefault(bytes.fromhex(row["key"]), place)


def _answer(row: Mapping[str, Any]) -> Answer:
    ids = row.get("response_ids")
    check_message(row["message"])
    return Answer(
        message=dict(row["message"]),
        finish_reason=str(row["finish_reason"]),
        seed=int(row["seed"]),
        prompt_tokens=token_count(row.get("prompt_tokens")),
        completion_tokens=token_count(row.get("completion_tokens")),
        response_ids=None if ids is None else tuple(ids),
    )


def _lock(file: int, folder: Path) -> None:
    """One run at a time; the system lets go of the lock when the process dies, however it dies."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            "another run writes to this output",
            got=folder,
            remedy="wait for it, or choose another --output",
        ) from error
    except OSError:  # some network file systems cannot lock
        return


def discard(folder: Path) -> None:
    """Remove the answers of an unfinished run (``--fresh``); other folders are left alone."""
    if (folder / SETTINGS).is_file() or (folder / ANSWERS).is_file():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
