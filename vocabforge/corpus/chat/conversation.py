"""Conversations: the usual row formats, read into messages and tool lists."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import DataError

DEEPEST = 100
"""Lists and objects within each other; schemas of tools and arguments of calls need about ten."""


def check_nesting(value: Any, what: str) -> None:
    """Refuse a value of more than ``DEEPEST`` levels; looks without recursion.

    Raises:
        DataError: ``what``, the value's name, is nested too deeply.
    """
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, (Mapping, list, tuple))]:
        depth += 1
        if depth > DEEPEST:
            raise DataError(
                f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="less"
            )
        level = [part for one in level for part in (one.values() if isinstance(one, Mapping) else one)]


def load_nested(text: str, what: str) -> Any:
    """``json.loads``, with the DataError of :func:`check_nesting` for a text that nests too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise DataError(
            f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="less"
        ) from error
    check_nesting(value, what)
    return value


Message = dict[str, Any]
"""``role``, ``content`` and, where the row has them, ``reasoning_content``, ``tool_calls``, ``name``.

``loss_weight`` 0 marks a turn that nobody is to learn from, ``cut`` True an answer that ended because no more
tokens were allowed: its end is not the target's."""

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",  # of ShareGPT
    "bard": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
    "function_call": "function_call",
    "observation": "tool",
    "function": "tool",
    "tool": "tool",
}
_KEPT = ("reasoning_content", "tool_calls", "tool_call_id", "name")
_WEIGHTS = ("loss_weight", "weight")
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
)


def parse_conversation(row: Mapping[str, Any]) -> list[Message] | None:
    """The conversation of a JSON row, or None when the row holds none (a plain text).

    Reads ShareGPT (``conversations`` with ``from``/``value``), OpenAI (``messages`` with ``role`` and ``content``, as
    text or parts), Alpaca (``instruction``, ``input``, ``output``) and pairs (:data:`_PAIRS`).

    Raises:
        DataError: the row looks like a conversation and is malformed.
    """
    for name in ("messages", "conversations", "conversation"):
        if isinstance(turns := row.get(name), list):
            return _turns(turns, system=row.get("system"))
    for ask, reply in _PAIRS:
        if ask in row and reply in row:
            return _pair(row, ask, reply)
    return None


def _turns(turns: Sequence[Any], *, system: Any = None) -> list[Message]:
    if not turns:
        raise DataError("the conversation is empty", got="no turn", expected="one turn or more")
    messages = [_message(turn) for turn in turns]
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _pair(row: Mapping[str, Any], ask: str, reply: str) -> list[Message]:
    question, answer = row[ask], row[reply]
    if isinstance(question, list) and isinstance(answer, list):
        return _turns([*question, *answer], system=row.get("system"))
    if not isinstance(question, str) or not isinstance(answer, str):
        kinds = f"{type(question).__name__} and {type(answer).__name__}"
        raise DataError(
            f"{ask} and {reply} are not both texts", got=kinds, expected="two texts, or two lists of turns"
        )
    if ask == "instruction" and isinstance(extra := row.get("input"), str) and extra:
        question = f"{question}\n{extra}"
    return _turns(
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        system=row.get("system"),
    )


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(
            "a turn of the conversation is not an object",
            got=type(turn).__name__,
            expected="an object with role and content, or from and value",
        )
    check_nesting(turn, "a turn of the conversation")
    name = turn.get("role", turn.get("from"))
    role = _ROLES.get(str(name).lower())
    if role is None:
        raise DataError(
            "a turn of the conversation has an unknown role", got=name, expected=", ".join(_ROLES)
        )
    content = turn.get("content", turn.get("value"))
    message: Message = {"role": role, "content": ""}
    message |= {key: turn[key] for key in _KEPT if turn.get(key) is not None}
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"])
    if role == "assistant" and any(_is_zero(turn.get(key)) for key in _WEIGHTS):
        message["loss_weight"] = 0
    if role == "assistant" and turn.get("cut") is True:
        message["cut"] = True
    if isinstance(content, list):
        _read_parts(content, message)
    elif isinstance(content, str):
        message["content"] = content
    elif content is not None or "tool_calls" not in message:
        raise DataError(
            "a turn of the conversation has no text",
            got=f"{role}: {type(content).__name__}",
            expected="a text, a list of parts, or tool_calls",
        )
    if role == "function_call":
        message |= {"role": "assistant", "content": "", "tool_calls": [_tool_call(message["content"])]}
    return message


def _read_parts(parts: Sequence[Any], message: Message) -> None:
    """Contents given as lists of typed parts: texts are joined, reasoning and tool calls become fields."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        value = part.get("text", part.get("value")) if isinstance(part, Mapping) else part
        if isinstance(value, str) and kind in ("text", None):
            texts.append(value)
        elif isinstance(value, str) and kind == "reasoning":
            message["reasoning_content"] = message.get("reasoning_content", "") + value
        elif isinstance(value, str) and kind == "tool_call":
            message["tool_calls"] = [*message.get("tool_calls", []), _tool_call(value)]
        else:
            raise DataError(
                "a part of a turn is not text",
                got=kind or type(part).__name__,
                expected="parts of type text, reasoning or tool_call",
            )
    message["content"] = "".join(texts)


def _tool_call(text: str) -> dict[str, Any]:
    call = _parsed(text, "a tool call", "an object with a name, and arguments")
    body = _named(call, "a tool call")
    return {"type": "function", "function": {"name": body["name"], "arguments": body.get("arguments", {})}}


def _parsed(text: str, what: str, expected: str) -> Any:
    try:
        return load_nested(text, what)
    except ValueError as error:
        raise DataError(f"{what} is not valid JSON", got=error, expected=expected) from error


def _named(entry: Any, what: str) -> Mapping[str, Any]:
    """The object that holds the name of a tool or a call: the entry itself, or its ``function``."""
    body = entry.get("function", entry) if isinstance(entry, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise DataError(
            f"{what} has no name", got=str(entry)[:80], expected="a name, alone or in an object function"
        )
    return body


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Tool calls as serving engines hand them to templates: arguments as an object, not as its JSON text."""
    if not isinstance(calls, list):
        raise DataError(
            "the tool calls of a turn are not a list",
            got=type(calls).__name__,
            expected="a list of objects with a name each",
        )
    found = []
    for call in calls:
        body = _named(call, "a tool call")
        arguments = body.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):
                parsed = load_nested(arguments, "a tool call")
                arguments = parsed if isinstance(parsed, dict) else arguments
        outer = call if "function" in call else {"type": "function"}
        found.append({**outer, "function": {**body, "arguments": arguments}})
    return found


def _is_zero(weight: Any) -> bool:
    return isinstance(weight, (int, float)) and weight == 0


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """The tool list of a row (a list, or its JSON text) as serving engines hand it to chat templates, or None.

    Raises:
        DataError: neither a list nor the JSON of one, or an entry that is no function.
    """
    if isinstance(value, str):
        value = _parsed(value, "the row's tool list", "a list of tools") if value.strip() else None
    if value is None:
        return None
    check_nesting(value, "the row's tool list")
    if not isinstance(value, list):
        raise DataError(
            "the row's tool list is not a list",
            got=type(value).__name__,
            expected="a list of tools, or the JSON text of one",
        )
    return [_tool(entry) for entry in value] or None


def _tool(entry: Any) -> dict[str, Any]:
    if isinstance(entry, str):
        entry = _parsed(entry, "a tool of the row", "an object with a name")
    if isinstance(entry, dict) and isinstance(entry.get("function"), dict):
        return entry
    return {"type": "function", "function": _named(entry, "a tool of the row")}
