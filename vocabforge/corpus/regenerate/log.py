"""Log of the answers of a regenerate run, appended as they arrive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.journal import LinePosition, RunJournal
from .rows import ChatCompletion, check_message, json_line, token_count

RESPONSES = "responses.jsonl"
_FORMAT = 1


class AnswerLog(RunJournal):
    """Finished answers by the hex hash of their request; reusing them requires equal ``settings``.

    Raises:
        UsageError: the folder has answers for other settings or inputs, or another run is writing to it.
    """

    header, rows_file, others = "settings.json", "answers.jsonl", (RESPONSES,)

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        super().__init__(folder, {"format": _FORMAT, **settings}, fresh=fresh)

    def take(self, row: Any, place: LinePosition) -> None:
        _answer(row)
        self.places.setdefault(bytes.fromhex(row["key"]), place)

    def get(self, key: str) -> ChatCompletion | None:
        """Return the answer to a request, or None if there is none yet."""
        return _answer(self.row(bytes.fromhex(key))) if bytes.fromhex(key) in self else None

    def add(self, key: str, answer: ChatCompletion) -> None:
        """Append an answer, unless the request already has one."""
        if bytes.fromhex(key) not in self:
            self.put(bytes.fromhex(key), json_line({"key": key, "message": answer.message, **answer.facts()}))


def _answer(row: Mapping[str, Any]) -> ChatCompletion:
    ids = row.get("response_ids")
    check_message(row["message"])
    return ChatCompletion(
        message=dict(row["message"]),
        finish_reason=str(row["finish_reason"]),
        seed=int(row["seed"]),
        prompt_tokens=token_count(row.get("prompt_tokens")),
        completion_tokens=token_count(row.get("completion_tokens")),
        response_ids=None if ids is None else tuple(ids),
    )
