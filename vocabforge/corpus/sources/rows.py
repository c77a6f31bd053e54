"""From a row (of JSON, Parquet or a Hub data set) to a document: text, conversation, preference pair."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ..chat.conversation import Message, parse_conversation
from .bytes import Problems
from .document import Document, SourceOptions

_TURNS = ("messages", "conversations", "conversation")
_ASSISTANT = ("assistant", "gpt", "chatgpt", "model")


def row_document(
    row: Any, source: Path, place: int | str, options: SourceOptions, problems: Problems
) -> Document | None:
    """The document of a row, or None after the problem was recorded (or the text is empty)."""
    if not isinstance(row, dict):
        problems.add("the row is not a JSON object", source, place, type(row).__name__)
        return None
    text, conversation = row.get("text"), row
    if (name := options.text_field) is not None:
        if row.get(name) is None:
            fields = ", ".join(field for field in row if row[field] is not None) or "none"
            problems.add(f"the row has no field {name!r}", source, place, f"fields: {fields}")
            return None
        text = row[name]
        conversation = {"messages": text} if isinstance(text, (list, dict)) else {}
    text = text if isinstance(text, str) else None
    try:
        messages = _conversation(conversation)
    except DataError as error:
        problems.take(error, source, place)
        return None
    if text is None and messages is None:
        fields = ", ".join(map(str, row)) or "none"
        problems.add("the row holds neither a text nor a conversation", source, place, f"fields: {fields}")
        return None
    if messages is None and not (text or "").strip():
        return None
    if not _is_unicode(text, messages):
        problems.add("the row's text holds half a character (a lone surrogate)", source, place)
        return None
    return Document(text, messages, source, place, tools=row.get("tools") if messages is not None else None)


def missing_column(what: str, columns: Iterable[str], text_field: str | None, source: object) -> DataError:
    """The error for a table without the column that was asked for, or without any column of text."""
    return DataError(
        f"the {what} has no such column" if text_field else f"the {what} has no column of text",
        got=f"columns: {', '.join(columns) or 'none'}",
        expected=text_field,
        source=source,
        remedy=f"name a column of this {what} by --text-field" if text_field else None,
    )


def _is_unicode(text: str | None, messages: list[Message] | None) -> bool:
    """Whether a tokenizer can be given it: JSON escapes can spell surrogates that belong to no character."""
    try:
        (text or "").encode("utf-8")
        if messages is not None:
            json.dumps(messages, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _conversation(row: Mapping[str, Any]) -> list[Message] | None:
    """:func:`~vocabforge.corpus.chat.conversation.parse_conversation` of rows as tables hold them: absent fields are
    None, turns at times one list for each key, and answers of preference data apart (``chosen``, ``rejected``).
    """
    row = {name: value for name, value in row.items() if value is not None}
    for name in (*_TURNS, "prompt", "chosen"):
        if isinstance(turns := row.get(name), dict) and turns:
            row[name] = _transposed(turns)
    if "chosen" in row and "rejected" in row:
        row = _with_chosen(row)
    return parse_conversation(row)


def _transposed(turns: dict[str, Any]) -> Any:
    """A list for each key as a list of turns; anything else as it is."""
    columns = list(turns.values())
    if not all(isinstance(column, list) for column in columns) or len({len(c) for c in columns}) != 1:
        return turns
    return [dict(zip(turns, values)) for values in zip(*columns)]


def _with_chosen(row: dict[str, Any]) -> dict[str, Any]:
    """A preference row with its chosen answer (a text, a turn, turns, or the whole conversation) at the end."""
    name = next((name for name in (*_TURNS, "prompt") if name in row), None)
    before, chosen = row[name] if name else [], row["chosen"]
    turns = [{"role": "user", "content": before}] if isinstance(before, str) else list(before)
    if isinstance(chosen, str):
        chosen = {"role": "assistant", "content": chosen}
    if isinstance(chosen, Mapping):
        chosen = [chosen]
    if not isinstance(chosen, list) or not chosen or (not turns and len(chosen) < 2):
        return row
    if _role(chosen[0]) in _ASSISTANT and not (turns and _role(turns[-1]) in _ASSISTANT):
        chosen = [*turns, *chosen]
    elif turns and _role(turns[-1]) in _ASSISTANT:  # the answer stands in the conversation already
        chosen = turns
    return {"messages": chosen, "system": row.get("system")}


def _role(turn: Any) -> str:
    return str(turn.get("role", turn.get("from"))).lower() if isinstance(turn, Mapping) else ""
