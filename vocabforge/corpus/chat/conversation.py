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
    while level := [node for node in level if isinstance(node, (Mapping, list, tuple))]:
        depth += 1
        if depth > DEEPEST:
            raise _too_deep(what)
        level = [part for node in level for part in (node.values() if isinstance(node, Mapping) else node)]


def load_nested(text: str, what: str) -> Any:
    """Parse JSON; raise the DataError of :func:`check_nesting` if it is nested too deeply."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise _too_deep(what) from error
    check_nesting(value, what)
    return value


def _too_deep(what: str) -> DataError:
    got = f"more than {DEEPEST} levels"
    return DataError(f"{what} is nested too deeply", got=got, expected="fewer levels")


Message = dict[str, Any]
"""A turn: ``role``, ``content`` (text) and, if the row has them, ``reasoning_content`` and ``tool_calls``.
Other keys that are not null are kept because chat templates may read them.

``loss_weight`` 0 marks a turn that is not learnt. ``cut`` True marks an answer that ended at the token limit,
so its end is not the target's. :data:`PARTS` and :data:`THINKING_KEY` record the form in the row."""

PARTS = "_parts"
"""Message key of the row's content parts of type ``text`` and ``thinking``, if the content is a list."""
THINKING_KEY = "_thinking_key"
"""Message key of the row's name for ``reasoning_content``."""
UNREAD = "_unread"
"""Message key of a list: what nothing can read, such as other keys of content parts."""
INTERNAL = frozenset({"loss_weight", "cut", PARTS, THINKING_KEY, UNREAD})
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
QUESTIONS = "turns"  # of question files (Spec-Bench): texts of the user only
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
    | {QUESTIONS, "tools", "functions", "documents", "chat_template_kwargs", "text", "generation"}
)
"""Row keys with a meaning for conversations."""
_IGNORED = ("text", "generation")  # an alternative to the conversation; how ``regenerate`` made the row
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_LISTS = ("prompt", "completion", "response", "chosen", "rejected", "history")
_ASKS = ("prompt", "question", "query", "instruction")
_SPEAKERS = ("system", "developer", "user", "assistant", "function_call", "tool")
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
    (``question`` and ``answer``, ...), questions alone (``turns``) and preference data (``chosen``,
    ``rejected``). Lists may be given as JSON text, and turns as one list per key.

    Raises:
        DataError: the row looks like a conversation but is malformed.
    """
    row = {name: _as_rows(name, value) for name, value in row.items() if value is not None}
    used: set[Any] = set(_IGNORED)
    messages = _messages_of(row, used)
    if messages is None:
        return None
    system = next((name for name in _SYSTEM if isinstance(row.get(name), str) and row[name].strip()), None)
    if system is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": row[system]})
        used.add(system)
    elif system is not None and messages[0]["content"] == row[system]:
        used.add(system)
    tools = next((name for name in ("tools", "functions") if not is_empty(row.get(name))), None)
    variables = _template_arguments(row.get("chat_template_kwargs"))
    used |= {tools, "chat_template_kwargs"}
    if isinstance(documents := row.get("documents"), list) and documents:
        variables["documents"] = documents
        used.add("documents")
    said = {message["content"] for message in messages}  # repeated under another key, nothing is lost
    unread = tuple(
        name
        for name, value in row.items()
        if name not in used and not is_empty(value) and not (isinstance(value, str) and value in said)
    )
    return Conversation(messages, row.get(tools) if tools else None, variables, unread)


def is_empty(value: Any) -> bool:
    """Return whether a value is null or an empty text, list or object."""
    return value is None or (isinstance(value, (str, list, dict)) and not value)


def system_text(messages: Sequence[Message]) -> str | None:
    """Return the system and developer messages before the first question as one text, or None."""
    before = itertools.takewhile(lambda message: message["role"] != "user", messages)
    texts = [str(message["content"]) for message in before if message["role"] in ("system", "developer")]
    return "\n\n".join(text for text in texts if text.strip()) or None


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


def _as_rows(name: str, value: Any) -> Any:
    """Convert a list given as JSON text or as one list per key; return other values unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        if name in _TURNS:
            return _parsed(value, f"the row's {name}", "a list of turns")
        if name in _LISTS:
            with contextlib.suppress(ValueError, DataError):
                parsed = load_nested(value, name)
                return parsed if all(isinstance(turn, (Mapping, list)) for turn in parsed) else value
    return _transposed(value) if name in (*_TURNS, *_LISTS, "tools", "functions") else value


def _transposed(value: Any) -> Any:
    """Convert an object with one list per key to a list of objects; return other values unchanged."""
    if not isinstance(value, Mapping):
        return value
    columns = {name: column for name, column in value.items() if column is not None}
    lists = all(isinstance(column, list) for column in columns.values())
    if not columns or not lists or len({len(column) for column in columns.values()}) != 1:
        return value
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _messages_of(row: Mapping[str, Any], used: set[Any]) -> list[Message] | None:
    """Read the row's turns in the first format found; add the keys that were read to ``used``."""
    if "chosen" in row and "rejected" in row and (messages := _preferred(row, used)) is not None:
        return messages
    given = next((name for name in _TURNS if isinstance(row.get(name), list) and row[name]), None)
    if given is not None:
        used.add(given)
        return _turns(row[given])
    pair = next((pair for pair in _PAIRS if pair[0] in row and pair[1] in row), None)
    if pair is None:
        if (questions := _questions(row)) is not None:
            used.add(QUESTIONS)
            return questions
        if any(isinstance(row.get(name), list) for name in _TURNS):
            _turns([])  # raises
        return None
    question, answer = _question(row, pair[0], used), row[pair[1]]
    used.add(pair[1])
    before = _history(row, used)
    asked = [{"role": "user", "content": question}] if isinstance(question, str) else question
    told = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    if not isinstance(asked, list) or not isinstance(told, list):
        raise DataError(
            f"{pair[0]} and {pair[1]} are not both texts",
            got=f"{type(question).__name__} and {type(answer).__name__}",
            expected="texts or lists of turns",
        )
    return [*before, *_turns([*asked, *told])]


def _questions(row: Mapping[str, Any]) -> list[Message] | None:
    """Read a row of a question file: the user's turns alone, unless the row has a text."""
    turns = row.get(QUESTIONS)
    if not isinstance(turns, list) or not turns or not all(isinstance(text, str) for text in turns):
        return None
    return None if isinstance(row.get("text"), str) else [{"role": "user", "content": text} for text in turns]


def _question(row: Mapping[str, Any], name: str, used: set[Any]) -> Any:
    """Return the question of a row, joined with the input of an instruction."""
    used.add(name)
    if name != "instruction" or not isinstance(row[name], str):
        return row[name]
    extra = next((key for key in _INPUTS if isinstance(row.get(key), str) and row[key].strip()), None)
    used.add(extra)
    return row[name] if extra is None else f"{row[name]}\n{row[extra]}"


def _preferred(row: Mapping[str, Any], used: set[Any]) -> list[Message] | None:
    """Return the turns of a preference row; the chosen text, turn, turns or conversation comes last."""
    name = next((name for name in (*_TURNS, *_ASKS) if not is_empty(row.get(name))), None)
    read: set[Any] = {"chosen", "rejected"}
    before: Any = [] if name is None else _question(row, name, read)
    chosen = row["chosen"]
    turns = [{"role": "user", "content": before}] if isinstance(before, str) else list(before)
    if isinstance(chosen, str):
        chosen = {"role": "assistant", "content": chosen}
    if isinstance(chosen, Mapping):
        chosen = [chosen]
    if not isinstance(chosen, list) or not chosen or (not turns and len(chosen) < 2):
        return None
    used |= read | {name}
    earlier = _history(row, used)
    if _is_answer(chosen[0]) and not (turns and _is_answer(turns[-1])):
        return [*earlier, *_turns([*turns, *chosen])]
    # The conversation already has its answer, or the chosen turns are the whole conversation.
    return [*earlier, *_turns(turns if turns and _is_answer(turns[-1]) else chosen)]


def _is_answer(turn: Any) -> bool:
    name = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else ""
    return _ROLES.get(str(name).lower()) == "assistant"


def _turns(turns: Sequence[Any]) -> list[Message]:
    if not turns:
        raise DataError("the conversation is empty", got="no turn", expected="at least one turn")
    if len(turns) > 1 and all(isinstance(turn, str) for turn in turns):
        parsed = [_json_object(turn) for turn in turns]
        names = itertools.cycle(("user", "assistant"))  # of plain texts
        turns = [
            {"role": name, "content": text} if turn is None else turn
            for turn, name, text in zip(parsed, names, turns)
        ]
    return [_message(turn) for given in turns for turn in _by_speaker(given)]


def _json_object(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return None
    with contextlib.suppress(ValueError, DataError):
        value = load_nested(text, "a turn of the conversation")
        return value if isinstance(value, dict) and any(name in value for name in _ROLE_KEYS) else None
    return None


def _by_speaker(turn: Any) -> list[Any]:
    """Split an object with one text per speaker (``{"human": ..., "assistant": ...}``) into turns.

    The order of the keys is not significant: tables and sorted JSON change it.
    """
    if not isinstance(turn, Mapping) or any(name in turn for name in _ROLE_KEYS):
        return [turn]
    said = [name for name, text in turn.items() if str(name).lower() in _ROLES and isinstance(text, str)]
    if not said:
        return [turn]
    said.sort(key=lambda name: _SPEAKERS.index(_ROLES[str(name).lower()]))
    rest = {name: value for name, value in turn.items() if name not in said}
    turns = [{"role": name, "content": turn[name]} for name in said]
    return [*turns[:-1], {**rest, **turns[-1]}]


def _history(row: Mapping[str, Any], used: set[Any]) -> list[Message]:
    """Read the earlier rounds of an Alpaca row: pairs of texts, question-answer objects, or turns."""
    history = row.get("history")
    if is_empty(history):
        return []
    if not isinstance(history, list):
        raise DataError(
            "the row's history is not a list",
            got=type(history).__name__,
            expected="a list of question-answer pairs or of turns",
        )
    used.add("history")
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
    content = _transposed(turn[told]) if told else None
    message: Message = {"role": role, "content": ""}
    read = {named, told, "cut", "tool_calls"}
    thinking = next((name for name in _THINKING if not is_empty(turn.get(name))), None)
    if thinking is not None:
        message["reasoning_content"] = _thinking_text(turn[thinking])
        read |= {thinking, *(name for name in _THINKING if turn.get(name) == turn[thinking])}
        if thinking != "reasoning_content":
            message[THINKING_KEY] = thinking
    calls = _calls(turn.get("tool_calls"))
    old = _old_call(turn.get("function_call"))
    if not calls or [call["function"] for call in calls] == [call["function"] for call in old]:
        calls = calls or old
        read.add("function_call")
    weights = {name: turn[name] for name in _WEIGHTS if turn.get(name) is not None}
    read |= {name for name, weight in weights.items() if _is_weight(weight)}
    message |= {key: value for key, value in turn.items() if key not in read and value is not None}
    if calls:
        message["tool_calls"] = calls
    if role in ("assistant", "function_call"):
        if any(_is_weight(weight) and float(weight) == 0 for weight in weights.values()):
            message["loss_weight"] = 0
        if turn.get("cut") is True:
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


def _thinking_text(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    texts = [_part_text(part) for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise DataError(
            "the thinking of a turn is not text",
            got=type(value).__name__,
            expected="a text or a list of texts",
        )
    return "".join(text for text in texts if text is not None)


def _is_weight(weight: Any) -> bool:
    """Return whether a value is a loss weight: 1 to learn a turn, 0 not to."""
    return weight in (0, 1, "0", "1", "0.0", "1.0")


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
        value = _part_text(part)
        if isinstance(part, Mapping):
            keys = (key for key in part if key not in ("type", "text", "value", kind))
            message.setdefault(UNREAD, []).extend(
                f"{key} of parts" for key in keys if not is_empty(part[key])
            )
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
    message[PARTS] = kept
    if not message.get(UNREAD):
        message.pop(UNREAD, None)


def _part_text(part: Any) -> str | None:
    """Return the text of a part, from ``text``, ``value`` or the key named like its type; parts may nest."""
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else None
    for name in ("text", "value", part.get("type")):
        value = part.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            inner = [_part_text(piece) for piece in value]
            if all(isinstance(text, str) for text in inner):
                return "".join(text for text in inner if text is not None)
    return None


def _tool_call(text: str) -> dict[str, Any]:
    return _call(_parsed(text, "a tool call", "an object with a name and arguments"))


def _call(call: Any) -> dict[str, Any]:
    """Return a call with its name and arguments in ``function`` and its other keys (id, type) outside."""
    body = _named(call, "a tool call")
    named = next((name for name in _ARGUMENTS if name in body), "arguments")
    function = {"name": body["name"], "arguments": _arguments(body.get(named))}
    if body is call:
        return {"type": "function", **_without(call, {"name", named}), "function": function}
    return {**call, "function": {**_without(body, {"name", named}), **function}}


def _without(value: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in keys}


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
    calls = _transposed(calls)
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
    return [_tool_call(call) if isinstance(call, str) else _call(call) for call in calls]


class Arguments(dict[str, Any]):
    """Arguments parsed from JSON ``text``, which some templates write unchanged."""

    text: str


def _arguments(arguments: Any) -> Any:
    if isinstance(arguments, str) and arguments.strip():
        with contextlib.suppress(ValueError):
            parsed = load_nested(arguments, "a tool call")
            if not isinstance(parsed, dict):
                return arguments
            parsed_arguments = Arguments(parsed)
            parsed_arguments.text = arguments
            return parsed_arguments
    return arguments if not is_empty(arguments) else {}


def read_tools(value: Any) -> list[dict[str, Any]] | None:
    """Return a row's tool list (a list or its JSON text) as serving engines pass it to templates, or None.

    Raises:
        DataError: the value is neither a list nor its JSON text, or an entry is not a function.
    """
    if isinstance(value, str):
        value = _parsed(value, "the row's tool list", "a list of tools") if value.strip() else None
    value = _transposed(value)
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
    return {"type": "function", "function": _without(_named(entry, "a tool of the row"), {"type"})}
