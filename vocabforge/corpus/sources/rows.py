"""Convert rows (JSON, Parquet or Hub data sets) to documents: text, conversation, preference pair."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ..chat.conversation import CONVERSATION_KEYS, QUESTIONS, Conversation, read_conversation
from .bytes import Problems
from .document import Document, SourceOptions

# Keys of a row other than its turns.
_BESIDE = (
    "system",
    "system_prompt",
    "system_message",
    "tools",
    "functions",
    "documents",
    "chat_template_kwargs",
)


def row_document(
    row: Any, source: Path, place: int | str, options: SourceOptions, problems: Problems
) -> Document | None:
    """Return the document of a row, or None after recording a problem (or if the text is empty).

    Unread keys of a row with a conversation are recorded in ``problems``.
    """
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
        beside = {key: value for key, value in row.items() if key in _BESIDE or key not in CONVERSATION_KEYS}
        beside.pop(name, None)
        asked = name == QUESTIONS and isinstance(text, list) and all(isinstance(turn, str) for turn in text)
        conversation = (
            {**beside, QUESTIONS if asked else "messages": text} if isinstance(text, (list, dict)) else {}
        )
    text = text if isinstance(text, str) else None
    try:
        talk = read_conversation(conversation)
    except DataError as error:
        problems.take(error, source, place)
        return None
    if text is None and talk is None:
        fields = ", ".join(map(str, row)) or "none"
        problems.add("the row holds neither a text nor a conversation", source, place, f"fields: {fields}")
        return None
    if talk is None:
        return Document(text, None, source, place) if _whole(text, None, source, place, problems) else None
    if not _whole(text, talk, source, place, problems):
        return None
    problems.unread({f"{key} in rows": 1 for key in talk.unread}, source, place)
    return Document(text, talk.messages, source, place, tools=talk.tools, variables=talk.variables)


def _whole(
    text: str | None, talk: Conversation | None, source: Path, place: int | str, problems: Problems
) -> bool:
    """Return whether there is valid text or a conversation; JSON escapes can contain lone surrogates."""
    if talk is None and not (text or "").strip():
        return False
    try:
        (text or "").encode("utf-8")
        if talk is not None:
            json.dumps(talk.messages, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError:
        problems.add("the row's text holds half a character (a lone surrogate)", source, place)
        return False
    return True


def missing_column(what: str, columns: Iterable[str], text_field: str | None, source: object) -> DataError:
    """Return the error for a table without the requested column, or without any column of text."""
    return DataError(
        f"the {what} has no such column" if text_field else f"the {what} has no column of text",
        got=f"columns: {', '.join(columns) or 'none'}",
        expected=text_field,
        source=source,
        remedy=f"name a column of this {what} with --text-field" if text_field else None,
    )
