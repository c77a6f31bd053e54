"""Conversations: the usual row formats, and rendering with a loss mask (the only copy of either)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import DataError
from .tokenizer import TextTokenizer

Message = dict[str, Any]
"""``role``, ``content`` and, where the row has them, ``reasoning_content``, ``tool_calls``, ``name``."""

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
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

    Read are ShareGPT (``conversations`` with ``from``/``value``), OpenAI (``messages`` with ``role`` and
    ``content``, as text or as a list of parts), Alpaca (``instruction``, ``input``, and ``output`` or
    ``response``) and pairs (``prompt`` and ``response`` or ``completion``, ``question`` and ``answer``,
    ``query`` and ``response`` or ``answer``).

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
        raise DataError("the conversation is empty")
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
        raise DataError(f"{ask} and {reply} are not both texts", got=kinds)
    if ask == "instruction" and isinstance(extra := row.get("input"), str) and extra:
        question = f"{question}\n{extra}"
    return _turns(
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        system=row.get("system"),
    )


def _message(turn: Any) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError("a turn of the conversation is not an object", got=type(turn).__name__)
    name = turn.get("role", turn.get("from"))
    role = _ROLES.get(str(name).lower())
    if role is None:
        raise DataError("a turn of the conversation has an unknown role", got=name)
    content = turn.get("content", turn.get("value"))
    message: Message = {"role": role, "content": ""}
    message |= {key: turn[key] for key in _KEPT if turn.get(key) is not None}
    if isinstance(content, list):
        _read_parts(content, message)
    elif isinstance(content, str):
        message["content"] = content
    elif content is not None or "tool_calls" not in message:
        raise DataError("a turn of the conversation has no text", got=f"{role}: {type(content).__name__}")
    if role == "function_call":
        message |= {"role": "assistant", "content": "", "tool_calls": [_tool_call(message["content"])]}
    return message


def _read_parts(parts: Sequence[Any], message: Message) -> None:
    """Contents given as lists of typed parts: texts are joined, reasoning and tool calls become fields."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        value = part.get("text", part.get("value")) if isinstance(part, Mapping) else part
        if not isinstance(value, str):
            raise DataError("a part of a turn is not text", got=kind or type(part).__name__)
        if kind in ("text", None):
            texts.append(value)
        elif kind == "reasoning":
            message["reasoning_content"] = message.get("reasoning_content", "") + value
        elif kind == "tool_call":
            message["tool_calls"] = [*message.get("tool_calls", []), _tool_call(value)]
        else:
            raise DataError("a part of a turn is not text", got=kind)
    message["content"] = "".join(texts)


def _tool_call(text: str) -> dict[str, Any]:
    try:
        call = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError("a tool call is not valid JSON", got=error) from error
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise DataError("a tool call has no name", got=text[:80])
    return {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}


def render_with_mask(tokenizer: TextTokenizer, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """Token ids of a rendered conversation and l_t: 1 where the assistant wrote the token.

    The assistant's text is found by rendering prefixes of the conversation and comparing. It starts after
    the header that the template gives a turn to be generated and ends with the end-of-turn token; what the
    template puts between turns (a newline, mostly) is nobody's. A token counts when it starts inside.

    Returns:
        (ids, mask), both of the same length, without BOS or EOS beyond the template's own.

    Raises:
        DataError: no chat template, no assistant turn, a mask of only zeros or only ones, or a template whose
            rendering of earlier turns cannot be found again in the whole.
    """
    spans = assistant_spans(tokenizer, messages)
    text = tokenizer.render(messages)
    ids, offsets = tokenizer.encode_with_offsets(text)
    mask = [0] * len(ids)
    span = iter([*spans, (len(text), len(text))])
    start, end = next(span)
    for index, (at, _) in enumerate(offsets):
        while at >= end and end < len(text):
            start, end = next(span)
        mask[index] = int(start <= at < end)
    if not any(mask):
        raise DataError("the loss mask is all zero: the assistant's turns are empty", got=_roles(messages))
    if all(mask):
        raise DataError(
            "the loss mask is all one: the chat template writes nothing but the assistant's text",
            got=_roles(messages),
            expected="a conversation with a prompt",
        )
    return ids, mask


def assistant_spans(tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[tuple[int, int]]:
    """(start, end) in characters of the rendered conversation, one for each assistant turn.

    A first turn of the assistant answers no prompt, and is left out. See :func:`render_with_mask`.
    """
    answers = [index for index, message in enumerate(messages) if index and message["role"] == "assistant"]
    if not answers:
        raise DataError(
            "the conversation has no assistant turn that answers, so its loss mask is all zero",
            got=f"roles: {_roles(messages)}",
        )
    whole = tokenizer.render(messages)
    spans: list[tuple[int, int]] = []
    for index in answers:
        head = tokenizer.render(messages[:index], add_generation_prompt=True)
        if not whole.startswith(head):
            raise _unstable(tokenizer, messages, index, "what stands before it")
        upto = tokenizer.render(messages[: index + 1])
        end = len(upto) if whole.startswith(upto) else _end_by_substitution(tokenizer, messages, index, whole)
        if end < len(head):
            raise _unstable(tokenizer, messages, index, "its own text")
        spans.append((len(head), len(head) + _without_tail(tokenizer, whole[len(head) : end])))
    return spans


def _end_by_substitution(
    tokenizer: TextTokenizer, messages: Sequence[Message], index: int, whole: str
) -> int:
    """End of a turn whose text the template writes differently once other turns follow it.

    (Some templates drop earlier turns' thinking.) Rendering with two other contents shows, by comparing,
    what follows the turn's text: in the whole, and as the end of the turn, in the prefix.
    """
    prefix = messages[: index + 1]
    after = _common_suffix(*(_with_content(tokenizer, messages, index, text) for text in ("Xq", "Zw")))
    tail = _common_suffix(*(_with_content(tokenizer, prefix, index, text) for text in ("Xq", "Zw")))
    if not whole.endswith(after) or not after.startswith(tail):
        raise _unstable(tokenizer, messages, index, "what stands behind it")
    return len(whole) - len(after) + len(tail)


def _with_content(tokenizer: TextTokenizer, messages: Sequence[Message], index: int, text: str) -> str:
    plain = {"role": messages[index]["role"], "content": text}
    return tokenizer.render([*messages[:index], plain, *messages[index + 1 :]])


def _common_suffix(first: str, second: str) -> str:
    length = 0
    for left, right in zip(reversed(first), reversed(second)):
        if left != right:
            break
        length += 1
    return first[len(first) - length :]


def _without_tail(tokenizer: TextTokenizer, turn: str) -> int:
    """Length of a turn without the white space behind its end-of-turn token, if it has one."""
    bare = turn.rstrip()
    closers = (token.content for token in tokenizer.backend.get_added_tokens_decoder().values())
    return len(bare) if any(bare.endswith(closer) for closer in closers) else len(turn)


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(str(message["role"]) for message in messages)


def _unstable(tokenizer: TextTokenizer, messages: Sequence[Message], index: int, what: str) -> DataError:
    return DataError(
        f"the chat template writes turn {index + 1} differently when others follow ({what}), "
        "so the assistant's tokens cannot be told apart",
        got=f"roles: {_roles(messages)}",
        source=tokenizer.source.parent,
        remedy="cut the conversation after one answer, or use a template that writes a turn always alike",
    )
