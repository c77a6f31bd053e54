"""Detect the forms in which a chat template expects contents, thinking and call arguments.

Published templates differ in all three. Each form is tried on short conversations. A form counts as read if
two different texts in it render differently.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...core.errors import DataError
from .conversation import INTERNAL, PARTS, THINKING_KEY, Message
from .template import check_template, render_template

ContentFormat = Literal["auto", "text", "parts"]
"""Form of turn contents: text or lists of parts; ``auto`` detects it."""

_PROBES = ("Xq7Jd", "Zw4Kv")
_REPR = re.compile(r"""['"]type['"]: ['"](text|thinking)['"]""")
_CALL_ID = "callXq7Jd"  # nine letters and digits, as Mistral's templates require
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "What."}}},
    },
}
_THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True)
class TemplateForms:
    """Message forms that a chat template reads.

    Attributes:
        parts: roles whose contents are passed as lists of parts.
        lists: roles whose contents the template reads both as text and as lists of parts.
        silent: roles whose contents the template omits.
        thinking: key of a turn's thinking, ``part`` for a content part of type ``thinking``, or None if the
            template reads no thinking.
        text_arguments: whether call arguments are passed as JSON text instead of an object.
        flat_calls: whether name and arguments of a call are passed without an object ``function`` around them.
        tools: whether the template reads the tool list.
    """

    parts: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    thinking: str | None = "reasoning_content"
    text_arguments: bool = False
    flat_calls: bool = False
    tools: bool = False

    def shape(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Convert messages to these forms and drop VocabForge's internal keys."""
        return [self._shaped(message) for message in messages]

    def _as_parts(self, message: Mapping[str, Any], shaped: dict[str, Any]) -> list[dict[str, str]]:
        """Return the row's own parts unless a probe replaced the content or the thinking."""
        parts, content = message.get(PARTS, ()), message["content"]
        texts = [part for part in parts if part["type"] == "text"]
        if not texts or "".join(part["text"] for part in texts) != content:
            return [{"type": "text", "text": content}]
        thinking = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
        if self.thinking == "part" and thinking == message.get("reasoning_content", ""):
            shaped.pop("reasoning_content", None)
            return [dict(part) for part in parts]
        return [dict(part) for part in texts]

    def _shaped(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if len(message) == 2 and message["role"] not in self.parts:
            return message
        shaped = {key: value for key, value in message.items() if key not in INTERNAL}
        if message["role"] in self.parts or (message["role"] in self.lists and PARTS in message):
            shaped["content"] = self._as_parts(message, shaped)
        if self.thinking is None and (own := message.get(THINKING_KEY)) in _THINKING_KEYS:
            shaped[own] = shaped.pop("reasoning_content")  # read in other conversations only, if at all
        if "reasoning_content" in shaped and self.thinking not in (None, "reasoning_content"):
            thinking = shaped.pop("reasoning_content")
            if self.thinking == "part":
                content = shaped["content"]
                texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
                shaped["content"] = [{"type": "thinking", "thinking": thinking}, *texts]
            else:
                shaped[str(self.thinking)] = thinking
        if (self.text_arguments or self.flat_calls) and shaped.get("tool_calls"):
            shaped["tool_calls"] = [self._shaped_call(call) for call in shaped["tool_calls"]]
        return shaped

    def _shaped_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        arguments = function.get("arguments")
        if self.text_arguments and not isinstance(arguments, str):
            text = getattr(arguments, "text", None) or json.dumps(arguments, ensure_ascii=False)
            function["arguments"] = text
        if not self.flat_calls:
            return {**call, "function": function}
        return {**{key: value for key, value in call.items() if key != "function"}, **function}


def find_forms(
    template: str, names: Mapping[str, Any], *, tools: bool, content: ContentFormat, source: object
) -> TemplateForms:
    """Detect the forms of a template, with or without a tool list; ``names`` are its variables.

    Raises:
        DataError: the template cannot be compiled, or two different questions or answers render alike.
    """
    check_template(template, source)
    forms = _forms_of(template, _Names(names), tools, content)
    for role, what in (("user", "the user's texts"), ("assistant", "the assistant's texts")):
        if role in forms.silent:
            raise DataError(
                f"the chat template does not write {what}",
                got="two different texts that render alike" + (", with a tool list" if tools else ""),
                expected="a template that reads contents as texts or as lists of parts of type text",
                source=source,
                remedy="use the chat template of the published model"
                + ("" if content == "auto" else f", or leave the content format {content} out"),
            )
    return forms


class _Names(dict[str, Any]):
    """Variables of a template that can be the key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True, default=str))


@functools.lru_cache(maxsize=256)
def _forms_of(template: str, names: _Names, tools: bool, content: ContentFormat) -> TemplateForms:
    prober = _Prober(template, names, tools)
    parts: set[str] = set()
    lists: set[str] = set()
    silent: set[str] = set()
    for role in ("user", "assistant", "system", "developer", "tool"):
        if content == "parts":
            parts.add(role)
            if prober.reads_content(role, parts) is False:
                silent.add(role)
            continue
        as_text = prober.reads_content(role, parts)
        if as_text or content == "text":
            silent |= {role} if as_text is False else set()
            lists |= {role} if content == "auto" and prober.reads_lists(role, parts) else set()
        elif prober.reads_content(role, parts | {role}):
            parts.add(role)
        elif as_text is False:
            silent.add(role)
    forms = TemplateForms(frozenset(parts), frozenset(lists), frozenset(silent), thinking=None)
    forms = prober.with_calls(forms)
    return replace(
        forms,
        thinking=prober.thinking(forms),
        tools=tools and prober.reads_tools(forms),
    )


class _Prober:
    def __init__(self, template: str, names: Mapping[str, Any], tools: bool) -> None:
        self._template = template
        self._names = {**names, "tools": [_TOOL] if tools else None}

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str | None:
        """Return the rendered text, or None if the template rejects the conversation."""
        try:
            return render_template(
                self._template,
                messages,
                add_generation_prompt=False,
                variables={**self._names, **variables},
                source=None,
            )
        except DataError:
            return None

    def reads_content(self, role: str, parts: set[str]) -> bool | None:
        """Return whether two contents of a role render differently; None if all renderings are rejected."""
        told = [first != second for first, second in self._pairs(role, parts)]
        return any(told) if told else None

    def reads_lists(self, role: str, parts: set[str]) -> bool:
        """Return whether a role's lists of parts are read as such, not printed as Python lists."""
        pairs = list(self._pairs(role, parts | {role}))
        return any(first != second and not _REPR.search(first) for first, second in pairs)

    def _pairs(self, role: str, parts: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the renderings of two contents, for each conversation that is not rejected."""
        conversations = zip(*(_contexts(role, probe) for probe in _PROBES))
        return self._renderings(TemplateForms(frozenset(parts)), conversations)

    def _renderings(
        self, forms: TemplateForms, pairs: Iterable[tuple[list[Message], ...]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the renderings of pairs of conversations, unless one of them is rejected."""
        for pair in pairs:
            first, second = (self.render(forms.shape(messages)) for messages in pair)
            if first is not None and second is not None:
                yield first, second

    def thinking(self, forms: TemplateForms) -> str | None:
        """Return the form in which the template reads the thinking of the last turn, or None."""

        def core(probe: str, called: bool, answered: bool) -> list[Message]:
            turn = {**_turn("assistant"), "reasoning_content": probe}
            if called:
                turn["tool_calls"] = [_call({"at": "sea"})]
            return [_turn("user"), turn, *(_AFTER_CALL if answered else [])]

        for key in (*_THINKING_KEYS, "part"):
            kinds = ((False, False), (True, False), (True, True))
            pairs = zip(*(_opened(core(probe, *kind) for kind in kinds) for probe in _PROBES))
            for first, second in self._renderings(replace(forms, thinking=key), pairs):
                if first != second and not _REPR.search(first):
                    return key
        return None

    def with_calls(self, forms: TemplateForms) -> TemplateForms:
        """Return the forms with that of calls whose name and arguments are written, arguments as JSON."""

        def core(call: dict[str, Any], answered: bool) -> list[Message]:
            return [
                _turn("user"),
                {**_turn("assistant", ""), "tool_calls": [call]},
                *_AFTER_CALL[: 2 * answered],
            ]

        def differ(form: TemplateForms, calls: Sequence[dict[str, Any]]) -> bool:
            pairs = zip(*(_opened(core(call, answered) for answered in (False, True)) for call in calls))
            return any(
                first != second and f"'at': '{_PROBES[0]}'" not in first
                for first, second in self._renderings(form, pairs)
            )

        tried = [
            replace(forms, flat_calls=flat, text_arguments=text)
            for flat in (False, True)
            for text in (False, True)
        ]
        arguments = [_call({"at": probe}) for probe in _PROBES]
        names = [_call({"at": "sea"}, probe) for probe in _PROBES]
        whole = (form for form in tried if differ(form, arguments) and differ(form, names))
        partly = (form for form in tried if differ(form, arguments) or differ(form, names))
        return next(whole, None) or next(partly, forms)

    def reads_tools(self, forms: TemplateForms) -> bool:
        """Return whether a different tool list changes the text."""
        other = {**_TOOL, "function": {**_TOOL["function"], "name": _PROBES[0]}}
        shaped = map(forms.shape, _opened([[_turn("user"), _turn("assistant")]]))
        return any(self.render(messages) != self.render(messages, tools=[other]) for messages in shaped)


def _turn(role: str, content: str = "sea") -> Message:
    return {"role": role, "content": content}


def _call(arguments: Mapping[str, Any], name: str = "look") -> dict[str, Any]:
    return {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}


_AFTER_CALL = [{**_turn("tool"), "tool_call_id": _CALL_ID, "name": "look"}, _turn("assistant")]


def _opened(cores: Iterable[list[Message]]) -> list[list[Message]]:
    """Return conversations, and the same with a system message."""
    cores = list(cores)
    return [*cores, *([_turn("system"), *core] for core in cores)]


def _contexts(role: str, content: str) -> list[list[Message]]:
    """Return conversations with a turn of this role and content."""
    turn, user, assistant = _turn(role, content), _turn("user"), _turn("assistant")
    if role == "user":
        return _opened(([turn], [turn, assistant]))
    if role == "assistant":
        return _opened(([user, turn], [user, turn, user]))
    if role == "tool":
        asked = {**_turn("assistant", ""), "tool_calls": [_call({"at": "sea"})]}
        return _opened(([user, asked, {**turn, "tool_call_id": _CALL_ID, "name": "look"}, assistant],))
    return [[turn, user], [turn, user, assistant]]
