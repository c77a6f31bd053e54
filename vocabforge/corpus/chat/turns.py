"""Locate the assistant's turns in a rendered conversation by comparing renderings.

A turn starts after the generation header, which the template writes before a turn to be generated, and ends
with its end-of-turn token. Some templates write a turn differently when others follow (Qwen3 drops the
thinking of earlier turns). Such a turn is located by rendering the whole conversation with two other contents
of the turn and taking the common prefix and suffix of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import DataError
from .conversation import Message
from .template import generation_spans, marks_generation

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import TextTokenizer

_PROBES = ("Xq", "Zw")  # no common first or last character
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables of published templates that turn thinking off when False."""


@dataclass(frozen=True, eq=False)
class Rendering:
    """A conversation and everything that affects its rendering."""

    tokenizer: TextTokenizer
    messages: Sequence[Message]
    variables: Mapping[str, Any]

    @functools.cached_property
    def whole(self) -> str:
        """The rendered conversation."""
        return self.tokenizer.render(self.messages, **self.variables)

    def upto(self, stop: int, *, prompt: bool = False) -> str:
        """Render the first ``stop`` messages; ``prompt`` appends the generation header."""
        if stop == len(self.messages) and not prompt:
            return self.whole
        return self.tokenizer.render(self.messages[:stop], add_generation_prompt=prompt, **self.variables)

    def replaced(self, index: int, message: Message, stop: int | None = None) -> str:
        """Render the first ``stop`` messages (default: all) with ``message`` at ``index``."""
        stop = len(self.messages) if stop is None else stop
        changed = [*self.messages[:index], message, *self.messages[index + 1 : stop]]
        return self.tokenizer.render(changed, **self.variables)

    def probed(self, index: int, *stops: int) -> list[tuple[str, str]]:
        """Render the first ``stop`` messages with two variants of turn ``index``, for each stop.

        Raises:
            DataError: the template rejects or ignores every variant of the turn.
        """
        for first, second in _variants(self.messages[index]):
            try:
                pairs = [(self.replaced(index, first, s), self.replaced(index, second, s)) for s in stops]
            except DataError:
                continue
            if all(first_text != second_text for first_text, second_text in pairs):
                return pairs
        raise self.unstable(index, "its own text")

    def prompt_without_thinking(self, index: int) -> str:
        """Return the generation header after ``index`` messages with thinking turned off."""
        off = {**self.variables, **dict.fromkeys(THINKING_SWITCHES, False)}
        base, head = (
            self.tokenizer.render(self.messages[:index], add_generation_prompt=prompt, **off)
            for prompt in (False, True)
        )
        return head[len(base) :] if head.startswith(base) else ""

    def unstable(self, index: int, what: str) -> DataError:
        """Return the error for a turn that cannot be located."""
        return DataError(
            f"the chat template writes turn {index + 1} differently when others follow ({what}), "
            "so the assistant's tokens cannot be distinguished",
            got=f"roles: {roles_of(self.messages)}",
            source=self.tokenizer.source.parent,
            remedy="cut the conversation after one answer, or use a template that renders turns consistently",
        )


def _variants(message: Message) -> Iterator[tuple[Message, Message]]:
    """Yield pairs of messages that differ in one field, the simplest first.

    Tool results must follow a call. Some templates omit the content of a turn with calls, and some reject
    content together with thinking.
    """
    first, second = _PROBES
    calls = message.get("tool_calls") or ()
    plain = {"role": message["role"]}
    answer = {key: value for key, value in message.items() if key != "reasoning_content"}
    for base in (plain, message, answer):
        yield {**base, "content": first}, {**base, "content": second}
    for call in calls[:1]:
        asked = ({**call, "function": {**call["function"], "arguments": {probe: probe}}} for probe in _PROBES)
        first_call, second_call = ({**message, "tool_calls": [changed, *calls[1:]]} for changed in asked)
        yield first_call, second_call


@dataclass(frozen=True)
class AssistantTurn:
    """Character range of an assistant turn in the rendered conversation.

    It starts after the generation header and ends after the end-of-turn token, or after the turn's last
    character if the token is missing.
    """

    index: int
    start: int
    end: int


def roles_of(messages: Sequence[Message]) -> str:
    """Return the roles for error messages."""
    return ", ".join(str(message["role"]) for message in messages)


def assistant_turns(rendering: Rendering, wanted: Collection[int]) -> list[AssistantTurn]:
    """Locate the wanted messages, except message 0, which answers no prompt.

    Raises:
        DataError: a turn cannot be located, or the template rejects a prefix of the conversation.
    """
    whole, tokenizer = rendering.whole, rendering.tokenizer
    closers = closing_tokens(tokenizer)
    ends = tuple(filter(None, (tokenizer.decode([token], skip_special=False) for token in tokenizer.eos_ids)))
    turns: list[AssistantTurn] = []
    behind = 0
    for index in sorted(set(wanted) - {0}):
        head = rendering.upto(index, prompt=True)
        start = len(head) if whole.startswith(head) else _start_by_substitution(rendering, index, head)
        try:
            upto = rendering.upto(index + 1)
        except DataError:  # the template demands a result after a call
            end = _end_by_token(rendering, index, ends)
        else:
            end = len(upto) if whole.startswith(upto) else _end_by_substitution(rendering, index)
        if start < behind or end < start:
            raise rendering.unstable(index, "its own text")
        behind = start + _without_tail(whole[start:end], closers)
        if not whole[start:behind].endswith(ends):  # the next role's token may double as the end token
            behind += next((len(token) for token in ends if whole.startswith(token, behind)), 0)
        turns.append(AssistantTurn(index, start, behind))
    return turns


def answer_start(rendering: Rendering, turn: AssistantTurn, thinking: tuple[str, str] | None) -> int:
    """Return the start of a turn's answer, after its thinking and the template's text around it.

    ``thinking`` is (thinking block, answer) if the content holds both.

    Raises:
        DataError: thinking and answer cannot be separated.
    """
    message = rendering.messages[turn.index]
    before, answer = thinking or ("", str(message["content"]))
    whole = rendering.whole
    alone = not before and not message.get("reasoning_content")
    if alone and answer.strip() and whole[turn.start : turn.end].lstrip().startswith(answer.strip()):
        return turn.start
    first, second = (
        rendering.replaced(turn.index, {**message, "content": before + text}) for text in _PROBES
    )
    if first == second and not before:  # the template omits the content of turns with calls
        return _behind_thinking(rendering, turn)
    prefix = _common_prefix(first, second)
    if not whole.startswith(prefix) or not turn.start <= len(prefix) <= turn.end:
        raise rendering.unstable(turn.index, "its thinking")
    return len(prefix)


def _behind_thinking(rendering: Rendering, turn: AssistantTurn) -> int:
    message, whole = rendering.messages[turn.index], rendering.whole
    first, second = (
        rendering.replaced(turn.index, {**message, "reasoning_content": text}) for text in _PROBES
    )
    after = _common_suffix(first, second)
    if first == second or not whole.endswith(after) or len(after) > len(whole) - turn.start:
        raise rendering.unstable(turn.index, "its thinking")
    return min(len(whole) - len(after), turn.end)


def cut_end(rendering: Rendering, turn: AssistantTurn) -> int:
    """Return the end of a cut answer's text, after which the target wrote nothing, not even calls.

    Raises:
        DataError: the end of the text cannot be located.
    """
    message = rendering.messages[turn.index]
    name = next(
        (name for name in ("content", "reasoning_content") if str(message.get(name) or "").strip()), None
    )
    if name is None:
        return turn.start
    text = str(message[name]).rstrip()
    first, second = (rendering.replaced(turn.index, {**message, name: text + probe}) for probe in _PROBES)
    if first == second:  # the template omits it
        return turn.start
    prefix = _common_prefix(first, second)
    if not rendering.whole.startswith(prefix) or not turn.start <= len(prefix) <= turn.end:
        raise rendering.unstable(turn.index, "the end of its text")
    return len(prefix)


def _start_by_substitution(rendering: Rendering, index: int, head: str) -> int:
    """Return the start of a turn that changes the text before it."""
    base = rendering.upto(index)
    ((first, second),) = rendering.probed(index, len(rendering.messages))
    prefix, floor = _common_prefix(first, second), _content_place(rendering, index - 1)
    header = head[len(base) :]
    if not header:  # then the target generates the space that the template writes before an answer
        header, prefix = _end_of(rendering, index - 1), prefix.rstrip()
    if head.startswith(base):
        start = _behind_header(prefix, header, floor)
        if start is None:  # earlier turns may have the header used without thinking
            start = _behind_header(prefix, rendering.prompt_without_thinking(index), floor)
        if start is not None and rendering.whole.startswith(prefix[:start]):
            return start
    raise rendering.unstable(index, "the text before it")


def _end_of(rendering: Rendering, index: int) -> str:
    """Return the text that the template writes after the content of a last message; empty if unknown."""
    try:
        ((first, second),) = rendering.probed(index, index + 1)
    except DataError:
        return ""
    return _common_suffix(first, second)


def _behind_header(prefix: str, header: str, floor: int) -> int | None:
    at = prefix.rfind(header)
    return at + len(header) if at >= floor else _behind_part(prefix, header, floor)


def _behind_part(prefix: str, header: str, floor: int) -> int | None:
    """Return the end of ``prefix`` if it ends with the beginning of a header.

    If a header ends with an empty thinking block, earlier turns may have only its beginning.
    """
    for length in range(len(header) - 1, 0, -1):
        if not header[:length].strip():
            break
        if prefix.endswith(header[:length]) and len(prefix) - length >= floor:
            return len(prefix)
    return None


def _content_place(rendering: Rendering, index: int) -> int:
    """Return the position of a message's content, or 0 if the template does not write it."""
    message = rendering.messages[index]
    first, second = (rendering.replaced(index, {**message, "content": text}) for text in _PROBES)
    return 0 if first == second else len(_common_prefix(first, second))


def _end_by_substitution(rendering: Rendering, index: int) -> int:
    """Return the end of a turn that the template writes differently when others follow."""
    pairs = rendering.probed(index, len(rendering.messages), index + 1)
    after, tail = (_common_suffix(*pair) for pair in pairs)
    if not after.startswith(tail):
        tail = _own_end(after, closing_tokens(rendering.tokenizer)) or tail
    if not rendering.whole.endswith(after) or not after.startswith(tail):
        raise rendering.unstable(index, "the text after it")
    return len(rendering.whole) - len(after) + len(tail)


def _end_by_token(rendering: Rendering, index: int, ends: tuple[str, ...]) -> int:
    """Return the end of a turn that cannot be the last one: after its first end token."""
    ((first, second),) = rendering.probed(index, len(rendering.messages))
    after, whole = _common_suffix(first, second), rendering.whole
    places = [(at, len(end)) for end in ends if (at := after.find(end)) >= 0]
    if not whole.endswith(after) or not places:
        raise rendering.unstable(index, "the text after it")
    at, size = min(places)
    return len(whole) - len(after) + at + size


def _own_end(after: str, closers: tuple[str, ...]) -> str:
    """Return the token that ends an earlier turn, if an added token also begins the next turn.

    gpt-oss ends its last turn with a different token.
    """
    for closer in sorted(closers, key=len, reverse=True):
        if after.startswith(closer):
            return closer if after[len(closer) :].lstrip().startswith(closers) else ""
    return ""


def _common_prefix(first: str, second: str) -> str:
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return first[:length]
    return first[: next(at for at in range(length) if first[at] != second[at])]


def _common_suffix(first: str, second: str) -> str:
    return _common_prefix(first[::-1], second[::-1])[::-1]


@functools.lru_cache(maxsize=4)
def closing_tokens(tokenizer: TextTokenizer) -> tuple[str, ...]:
    """Return the texts of all added tokens; in most templates, one of them ends a turn."""
    return tuple(token.content for token in tokenizer.backend.get_added_tokens_decoder().values())


def _without_tail(turn: str, closers: tuple[str, ...]) -> int:
    """Return the length of a turn without white space after its end-of-turn token, if any."""
    bare = turn.rstrip()
    return len(bare) if bare.endswith(closers) else len(turn)


def marked_spans(rendering: Rendering) -> list[tuple[int, int]] | None:
    """Return the character spans (start, end) inside generation tags, or None if they cannot be determined.

    Raises:
        DataError: the tags enclose nothing.
    """
    tools = rendering.variables.get("tools")
    template = rendering.tokenizer.template_for(tools)
    if not marks_generation(template):
        return None
    source = rendering.tokenizer.source.parent
    marked = generation_spans(
        template,
        rendering.whole,
        rendering.tokenizer.forms(tools, rendering.variables).shape(rendering.messages),
        variables={**rendering.tokenizer.special_text, **rendering.variables},
        source=source,
    )
    if marked is not None and not marked:
        raise DataError(
            "the chat template's generation tags enclose nothing, so the loss mask is all zero",
            got=f"roles: {roles_of(rendering.messages)}",
            expected="{% generation %} around the assistant's text",
            source=source,
        )
    return marked
