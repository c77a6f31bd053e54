"""Whether an answer, from a server or from the log, is of the form that the rest counts on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..core.errors import DataError
from .nesting import check_nesting, load_nested


def check_message(message: Any) -> None:
    """Look at an assistant's message.

    Raises:
        DataError: no message, or its tool calls are malformed.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
        raise DataError(
            "its answer is no message",
            got=type(message).__name__,
            expected="an object whose content is a text",
        )
    if message.get("role") != "assistant" or not isinstance(message.get("reasoning_content", ""), str):
        raise DataError(
            "its answer is no message of the assistant",
            got=f"role {message.get('role')!r}",
            expected="role assistant, and reasoning_content a text or absent",
        )
    calls = message.get("tool_calls")
    if calls is None:
        return
    check_nesting(calls, "a tool call of its answer")
    if not isinstance(calls, list):
        raise DataError("its answer holds malformed tool calls", got=type(calls).__name__, expected="a list")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(
                "its answer holds malformed tool calls",
                got=type(call).__name__,
                expected="an object function with a name",
            )
        arguments = function.get("arguments")
        if not isinstance(arguments, (str, Mapping, type(None))):
            raise DataError(
                "its answer holds malformed tool calls",
                got=f"arguments: {type(arguments).__name__}",
                expected="an object, or its JSON text",
            )
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # what is no JSON is the target's own mistake, and stays
                load_nested(arguments, "a tool call of its answer")


def token_count(value: Any) -> int | None:
    """A number of tokens as a server says it, None for what cannot be one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if whole and value >= 0 else None


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, in ASCII: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str).encode("ascii")


def content_digest(value: Any) -> str:
    """SHA-256 in hex of :func:`canonical`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def same_calls(first: Any, second: Any) -> bool:
    """Whether two lists of tool calls have equal names and arguments; one that cannot be read equals none."""
    try:
        return [_call(one) for one in first] == [_call(one) for one in second]
    except (RecursionError, TypeError, ValueError, DataError):
        return False


def _call(call: Any) -> tuple[str, Any]:
    """Name and arguments of a tool call; arguments as text are parsed, since spacing means nothing."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):
            arguments = load_nested(arguments, "a tool call")
    return str(function.get("name")), canonical(arguments)
