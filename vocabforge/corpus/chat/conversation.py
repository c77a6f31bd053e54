"""Read conversations in common row formats into messages and tool lists."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import DataError

DEEPEST = 100
"""Maximum nesting of lists and objects; tool schemas and call arguments need about ten levels."""


def check_nesting(value: Any, what: str) -> None:
    """Check without recursion that a value has at most ``DEEPEST`` levels.

    Raises:
        DataError: the value, named ``what`` in the message, is nested too deeply.
    """
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, (Mapping, list, tuple))]:
        depth += 1
        if depth > DEEPEST:
            raise DataError(
                f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="fewer levels"
            )
        level = [part for one in level for part in (one.values() if isinstance(one, Mapping) else one)]


def load_nested(text: str, what: str) -> Any:
    """Parse JSON; raise the DataError of :func:`check_nesting` if it is nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise DataError(
            f"{what} is nested too deeply", got=f"more than {DEEPEST} levels", expected="fewer levels"
        ) from error
    check_nesting(value, what)
    return value


Message = dict[str, Any]
"""A turn: ``role``, ``content`` (text) and, if the row has them, ``reasoning_content`` and ``tool_calls``.
Other keys that are not null are kept because chat templates may read them.

``loss_weight`` 0 marks a turn that is not learnt. ``cut`` True marks an answer that ended at the token limit,
so its end is not the target's. :data:`PARTS` and :data:`THINKING_KEY` record the form in the row."""

PARTS = "_parts"
"""Message key of the row's content parts of type ``text`` and ``thinking``, if there are several."""
THINKING_KEY = "_thinking_key"
"""Message key of the row's name for ``reasoning_content``."""
INTERNAL = frozenset({"loss_weight", "cut", PARTS, THINKING_KEY})
"""Message keys that are not passed to templates."""

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",  # from ShareGPT
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
_THINKING = ("reasoning_content", "reasoning", "thinking")
_WEIGHTS = ("loss_weight", "weight")
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value", "text")
_TURNS = ("messages", "conversations", "conversation")
_SYSTEM = ("system", "system_prompt", "system_message")
_INPUTS = ("input", "context")
_PAIRS = (
    ("prompt", "response"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "response"),
    ("instruction", "completion"),
    ("instruction", "answer"),
    ("prompt", "answer"),
    ("prompt", "output"),
    ("input", "output"),
)
CONVERSATION_KEYS = frozenset(
    {
        *_TURNS,
        *_SYSTEM,
        *_INPUTS,
        *(name for pair in _PAIRS for name in pair),
        "chosen",
        "rejected",
        "history",
    }
    | {"tools", "functions", "documents", "chat_template_kwargs", "text", "generation"}
)
"""Row keys that are read or safe to ignore (``rejected``, and ``generation`` in rows from regenerate)."""
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(frozen=True)
class Conversation:
    """A row's conversation and everything that affects its rendering.

    Attributes:
        tools: the tool list as given in the row, see :func:`read_tools`.
        variables: the row's template variables (``chat_template_kwargs``, ``documents``).
        unread: the row's other keys that are not empty.
    """

    messages: list[Message]
    tools: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def read_conversation(row: Mapping[str, Any]) -> Conversation | None:
    """Read the conversation of a JSON row; return None if there is none (plain text).

    Reads OpenAI (``messages`` with ``role`` and ``content``, as text or parts), ShareGPT (``conversations``
    with ``from`` and ``value``), Alpaca (``instruction``, ``input``, ``output``, ``history``), pairs
    (``question`` and ``answer``, ...) and preference data (``chosen``, ``rejected``). Lists may be given as
    JSON text, and turns as one list per key.

    Raises:
        DataError: the row looks like a conversation but is malformed.
    """
    row = {name: _as_turns(name, value) for name, value in row.items() if value is not None}
    used = set(CONVERSATION_KEYS)
    messages = _messages_of(row, used)
    if messages is None:
        return None
    system = next((name for name in _SYSTEM if isinstance(row.get(name), str) and row[name].strip()), None)
    if system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": row[system]})
    elif system is not None and messages[0]["content"] != row[system]:
        used.discard(system)
    used -= {name for name in _SYSTEM if name != system and row.get(name)}
    tools = next((name for name in ("tools", "functions") if not is_empty(row.get(name))), None)
    if tools == "tools":
        used.discard("functions")
    variables = _template_arguments(row.get("chat_template_kwargs"))
    if isinstance(documents := row.get("documents"), list) and documents:
        variables["documents"] = documents
    unread = tuple(name for name, value in row.items() if name not in used and not is_empty(value))
    return Conversation(messages, row.get(tools) if tools else None, variables, unread)


def is_empty(value: Any) -> bool:
    """Return whether a value is null or an empty text, list or object."""
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def key_name(message: Message, key: str) -> str:
    """Return the row's name for a key of a message."""
    return str(message.get(THINKING_KEY, key)) if key == "reasoning_content" else key


def _template_arguments(value: Any) -> dict[str, Any]:
    """Read the ``chat_template_kwargs`` of a row: an object or its JSON text."""
    what = "the row's chat_template_kwargs"
    if isinstance(value, str):
        value = _parsed(value, what, "an object") if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"{what} are not an object", got=type(value).__name__, expected="names and values")
    check_nesting(value, what)
    if taken := [name for name in value if name in _RESERVED]:
        raise DataError(
            f"{what} set what the row has a place of its own for",
            got=", ".join(map(str, taken)),
            expected="other names, such as enable_thinking",
        )
    return dict(value)


def _as_turns(name: str, value: Any) -> Any:
    """Convert turns given as JSON text or as one list per key to a list; return other values unchanged."""
    if name in _TURNS and isinstance(value, str) and value.lstrip().startswith("["):
        return _parsed(value, f"the row's {name}", "a list of turns")
    if name in (*_TURNS, "prompt", "chosen") and isinstance(value, Mapping) and value:
        columns = list(value.values())
        if all(isinstance(column, list) for column in columns) and len({len(c) for c in columns}) == 1:
            return [dict(zip(value, values)) for values in zip(*columns)]
    return value


def _messages_of(row: Mapping[str, Any], used: set[Any]) -> list[Message] | None:
    """Read the row's turns in the first format found; remove the keys of other formats from ``used``."""
    if "chosen" in row and "rejected" in row and (turns := _preferred(row)) is not None:
        return _turns(turns)
    given = [name for name in _TURNS if isinstance(row.get(name), list)]
    pairs = [pair for pair in _PAIRS if pair[0] in row and pair[1] in row]
    if given:
        used -= {*given[1:], *(name for pair in _PAIRS for name in pair), *_INPUTS, "history"}
        return _turns(row[given[0]])
    if not pairs:
        return None
    extra = None
    if pairs[0][0] == "instruction":
        extra = next((name for name in _INPUTS if isinstance(row.get(name), str) and row[name].strip()), None)
    used -= {*(name for pair in _PAIRS for name in pair), *_INPUTS} - {*pairs[0], extra}
    return _pair(row, *pairs[0], extra)


def _preferred(row: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the turns of a preference row; the chosen text, turn, turns or conversation comes last."""
    before: Any = next((row[name] for name in (*_TURNS, "prompt") if name in row), [])
    chosen = row["chosen"]
    turns = [{"role": "user", "content": before}] if isinstance(before, str) else list(before)
    if isinstance(chosen, str):
        chosen = {"role": "assistant", "content": chosen}
    if isinstance(chosen, Mapping):
        chosen = [chosen]
    if not isinstance(chosen, list) or not chosen or (not turns and len(chosen) < 2):
        return None
    if _is_answer(chosen[0]) and not (turns and _is_answer(turns[-1])):
        return [*turns, *chosen]
    # The conversation already has its answer, or the chosen turns are the whole conversation.
    return turns if turns and _is_answer(turns[-1]) else chosen


def _is_answer(turn: Any) -> bool:
    name = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else ""
    return _ROLES.get(str(name).lower()) == "assistant"


def _turns(turns: Sequence[Any]) -> list[Message]:
    if not turns:
        raise DataError("the conversation is empty", got="no turn", expected="at least one turn")
    if len(turns) > 1 and all(isinstance(turn, str) for turn in turns):  # user and assistant alternate
        names = itertools.cycle(("user", "assistant"))
        turns = [{"role": name, "content": text} for name, text in zip(names, turns)]
    return [_message(turn) for given in turns for turn in _by_speaker(given)]


def _by_speaker(turn: Any) -> list[Any]:
    """Split an object with one text per speaker (``{"human": ..., "assistant": ...}``) into turns."""
    if not isinstance(turn, Mapping) or any(name in turn for name in _ROLE_KEYS):
        return [turn]
    said = [name for name, text in turn.items() if str(name).lower() in _ROLES and isinstance(text, str)]
    if not said:
        return [turn]
    rest = {name: value for name, value in turn.items() if name not in said}
    turns = [{"role": name, "content": turn[name]} for name in said]
    return [*turns[:-1], {**rest, **turns[-1]}]


def _pair(row: Mapping[str, Any], ask: str, reply: str, extra: str | None) -> list[Message]:
    question, answer = row[ask], row[reply]
    before = _history(row.get("history"))
    if isinstance(question, list) and isinstance(answer, list):
        return [*before, *_turns([*question, *answer])]
    if not isinstance(question, str) or not isinstance(answer, str):
        kinds = f"{type(question).__name__} and {type(answer).__name__}"
        raise DataError(
            f"{ask} and {reply} are not both texts", got=kinds, expected="two texts, or two lists of turns"
        )
    if extra is not None:
        question = f"{question}\n{row[extra]}"
    asked = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return [*before, *_turns(asked)]


def _history(history: Any) -> list[Message]:
    """Read the earlier rounds of an Alpaca row: pairs of texts, question-answer objects, or turns."""
    if is_empty(history):
        return []
    if not isinstance(history, list):
        raise DataError(
            "the row's history is not a list",
            got=type(history).__name__,
            expected="a list of question-answer pairs or of turns",
        )
    turns: list[Any] = []
    for entry in history:
        if isinstance(entry, Mapping) and not any(name in entry for name in _ROLE_KEYS):
            pair = next((pair for pair in _PAIRS if all(isinstance(entry.get(n), str) for n in pair)), None)
            entry = [entry[name] for name in pair] if pair else entry
        if isinstance(entry, list) and len(entry) == 2 and all(isinstance(text, str) for text in entry):
            turns += [{"role": "user", "content": entry[0]}, {"role": "assistant", "content": entry[1]}]
        else:
            turns.append(entry)
    return _turns(turns)


def _first_key(turn: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if turn.get(name) is not None), None)


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(
            "a turn of the conversation is not an object",
            got=type(turn).__name__,
            expected="an object with role and content, or from and value",
        )
    check_nesting(turn, "a turn of the conversation")
    named = _first_key(turn, _ROLE_KEYS)
    name = turn[named] if named else None
    role = _ROLES.get(str(name).lower())
    if role is None:
        raise DataError(
            "a turn of the conversation has an unknown role", got=name, expected=", ".join(_ROLES)
        )
    told = _first_key(turn, _CONTENT_KEYS)
    content = turn[told] if told else None
    message: Message = {"role": role, "content": ""}
    read = {named, told, *_WEIGHTS, "cut", "tool_calls", "function_call"}
    if (
        thinking := next((n for n in _THINKING if isinstance(turn.get(n), str) and turn[n]), None)
    ) is not None:
        message["reasoning_content"] = turn[thinking]
        read |= {thinking, *(name for name in _THINKING if turn.get(name) == turn[thinking])}
        if thinking != "reasoning_content":
            message[THINKING_KEY] = thinking
    message |= {key: value for key, value in turn.items() if key not in read and value is not None}
    if calls := [*_calls(turn.get("tool_calls")), *_old_call(turn.get("function_call"))]:
        message["tool_calls"] = calls
    if role == "assistant" and any(_is_zero(turn.get(key)) for key in _WEIGHTS):
        message["loss_weight"] = 0
    if role == "assistant" and turn.get("cut") is True:
        message["cut"] = True
    if isinstance(content, list):
        _read_parts(content, message)
    elif isinstance(content, str):
        message["content"] = content
    elif content is not None or not (calls or message.get("reasoning_content")):
        raise DataError(
            "a turn of the conversation has no text",
            got=f"{role}: {type(content).__name__}",
            expected="a text, a list of parts, or tool_calls",
        )
    if role == "function_call":
        message |= {"role": "assistant", "content": "", "tool_calls": [_tool_call(message["content"])]}
    return message


def _old_call(call: Any) -> list[dict[str, Any]]:
    """Read OpenAI's legacy ``function_call``: one call without an id."""
    if is_empty(call):
        return []
    if isinstance(call, str):
        return [_tool_call(call)]
    return _calls([{"type": "function", "function": call}])


def _read_parts(parts: Sequence[Any], message: Message) -> None:
    """Read a content given as typed parts: join texts, store thinking and tool calls as fields."""
    texts: list[str] = []
    kept: list[dict[str, str]] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        value = _part_text(part, kind)
        if value is not None and kind in ("text", "input_text", "output_text", None):
            texts.append(value)
            kept.append({"type": "text", "text": value})
        elif value is not None and kind in ("reasoning", "thinking"):
            kept.append({"type": "thinking", "thinking": value})
            if "reasoning_content" not in message:
                message[THINKING_KEY] = f"{kind} part"
            message["reasoning_content"] = message.get("reasoning_content", "") + value
        elif value is not None and kind == "tool_call":
            message["tool_calls"] = [*message.get("tool_calls", []), _tool_call(value)]
        else:
            raise DataError(
                "a part of a turn is not text",
                got=kind or type(part).__name__,
                expected="parts of type text, thinking, reasoning or tool_call",
            )
    message["content"] = "".join(texts)
    if len(kept) > 1:
        message[PARTS] = kept


def _part_text(part: Any, kind: Any) -> str | None:
    """Return the text of a part, from ``text``, ``value`` or the key named like its type; parts may nest."""
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else None
    for name in ("text", "value", kind):
        value = part.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            inner = [_part_text(one, one.get("type") if isinstance(one, Mapping) else None) for one in value]
            if all(isinstance(text, str) for text in inner):
                return "".join(text for text in inner if text is not None)
    return None


def _tool_call(text: str) -> dict[str, Any]:
    call = _parsed(text, "a tool call", "an object with a name and arguments")
    body = _named(call, "a tool call")
    return {
        "type": "function",
        "function": {"name": body["name"], "arguments": _arguments(body.get("arguments"))},
    }


def _parsed(text: str, what: str, expected: str) -> Any:
    try:
        return load_nested(text, what)
    except ValueError as error:
        raise DataError(f"{what} is not valid JSON", got=error, expected=expected) from error


def _named(entry: Any, what: str) -> Mapping[str, Any]:
    """Return the object with the name of a tool or call: the entry itself or its ``function``."""
    body = entry.get("function", entry) if isinstance(entry, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise DataError(
            f"{what} has no name",
            got=str(entry)[:80],
            expected="a name, in the object itself or in its function",
        )
    return body


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Return tool calls as serving engines pass them to templates: arguments as an object, not JSON text."""
    if isinstance(calls, str) and calls.strip():
        calls = _parsed(calls, "the JSON text of a turn's tool calls", "a list of objects, each with a name")
    if isinstance(calls, Mapping) and calls:
        calls = [calls]
    if is_empty(calls) or (isinstance(calls, str) and not calls.strip()):
        return []
    if not isinstance(calls, list):
        raise DataError(
            "the tool calls of a turn are not a list",
            got=type(calls).__name__,
            expected="a list of objects, each with a name",
        )
    found = []
    for call in calls:
        if isinstance(call, str):
            call = _parsed(call, "a tool call", "an object with a name and arguments")
        body = _named(call, "a tool call")
        outer = call if "function" in call else {"type": "function"}
        found.append({**outer, "function": {**body, "arguments": _arguments(body.get("arguments"))}})
    return found


class Arguments(dict[str, Any]):
    """Arguments parsed from JSON ``text``, which some templates write unchanged."""

    text: str


def _arguments(arguments: Any) -> Any:
    if isinstance(arguments, str) and arguments.strip():
        with contextlib.suppress(ValueError):
            parsed = load_nested(arguments, "a tool call")
            if not isinstance(parsed, dict):
                return arguments
            found = Arguments(parsed)
            found.text = arguments
            return found
    return arguments if not is_empty(arguments) else {}


def _is_zero(weight: Any) -> bool:
    return isinstance(weight, (int, float)) and weight == 0


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return a row's tool list (a list or its JSON text) as serving engines pass it to templates, or None.

    Raises:
        DataError: the value is neither a list nor its JSON text, or an entry is not a function.
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
