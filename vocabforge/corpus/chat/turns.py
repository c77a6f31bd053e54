"""Where the assistant's turns stand in a rendered conversation, found by rendering others and comparing.

A turn starts behind the header that the template gives a turn to be generated, and ends with its end-of-turn
token. Where the template writes a turn differently once others follow (Qwen3 drops earlier turns' thinking), the
place is found by rendering the whole with two other contents of that turn and taking what both have in common.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import DataError
from ..tokenizer.tokenizer import TextTokenizer
from .conversation import Message
from .template import generation_spans, marks_generation

_PROBES = ("Xq", "Zw")  # they share neither a first nor a last character
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Names by which published templates are told not to think."""


@dataclass(frozen=True, eq=False)
class Rendering:
    """A conversation with all that decides its rendering."""

    tokenizer: TextTokenizer
    messages: Sequence[Message]
    variables: Mapping[str, Any]

    @functools.cached_property
    def whole(self) -> str:
        """The rendered conversation."""
        return self.tokenizer.render(self.messages, **self.variables)

    def upto(self, stop: int, *, prompt: bool = False) -> str:
        """The first ``stop`` messages; ``prompt`` ends them with the header of a turn to be generated."""
        if stop == len(self.messages) and not prompt:
            return self.whole
        return self.tokenizer.render(self.messages[:stop], add_generation_prompt=prompt, **self.variables)

    def replaced(self, index: int, message: Message, stop: int | None = None) -> str:
        """The first ``stop`` messages (all) with another one at ``index``."""
        stop = len(self.messages) if stop is None else stop
        changed = [*self.messages[:index], message, *self.messages[index + 1 : stop]]
        return self.tokenizer.render(changed, **self.variables)

    def probed(self, index: int, *stops: int) -> list[tuple[str, str]]:
        """Render the first ``stop`` messages twice, for each stop, with turn ``index`` saying two different things.

        Raises:
            DataError: the template refuses or ignores every change of the turn.
        """
        for first, second in _variants(self.messages[index]):
            try:
                pairs = [(self.replaced(index, first, s), self.replaced(index, second, s)) for s in stops]
            except DataError:
                continue
            if all(one != other for one, other in pairs):
                return pairs
        raise self.unstable(index, "its own text")

    def prompt_without_thinking(self, index: int) -> str:
        """The header of a turn to be generated behind ``index`` messages when the template is told not to think."""
        off = {**self.variables, **dict.fromkeys(THINKING_SWITCHES, False)}
        base, head = (
            self.tokenizer.render(self.messages[:index], add_generation_prompt=prompt, **off)
            for prompt in (False, True)
        )
        return head[len(base) :] if head.startswith(base) else ""

    def unstable(self, index: int, what: str) -> DataError:
        """The error for a turn that cannot be told apart."""
        return DataError(
            f"the chat template writes turn {index + 1} differently when others follow ({what}), "
            "so the assistant's tokens cannot be distinguished",
            got=f"roles: {roles_of(self.messages)}",
            source=self.tokenizer.source.parent,
            remedy="cut the conversation after one answer, or use a template that writes a turn always alike",
        )


def _variants(message: Message) -> Iterator[tuple[Message, Message]]:
    """Yield pairs of messages that differ in one thing, the simplest first.

    A tool's result must follow a call, some templates leave out the content beside a call, and some forbid it beside
    thinking.
    """
    first, second = _PROBES
    calls = message.get("tool_calls") or ()
    plain = {"role": message["role"]}
    answer = {key: value for key, value in message.items() if key != "reasoning_content"}
    for base in (plain, message, answer):
        yield {**base, "content": first}, {**base, "content": second}
    for call in calls[:1]:
        asked = ({**call, "function": {**call["function"], "arguments": {probe: probe}}} for probe in _PROBES)
        one, other = ({**message, "tool_calls": [changed, *calls[1:]]} for changed in asked)
        yield one, other


@dataclass(frozen=True)
class AssistantTurn:
    """An assistant turn in characters of the rendered conversation: from behind the header of a turn to be
    generated to behind the end-of-turn token, or the turn's last character without one.
    """

    index: int
    start: int
    end: int


def roles_of(messages: Sequence[Message]) -> str:
    """The roles, for error messages."""
    return ", ".join(str(message["role"]) for message in messages)


def assistant_turns(rendering: Rendering, wanted: Collection[int]) -> list[AssistantTurn]:
    """The wanted messages' places; a first one answers no prompt and is left out.

    Raises:
        DataError: a turn's place cannot be found, or the template refuses a prefix of the conversation.
    """
    whole, tokenizer = rendering.whole, rendering.tokenizer
    closers = closing_tokens(tokenizer)
    ends = tuple(filter(None, (tokenizer.decode([token], skip_special=False) for token in tokenizer.eos_ids)))
    turns: list[AssistantTurn] = []
    behind = 0
    for index in sorted(set(wanted) - {0}):
        head = rendering.upto(index, prompt=True)
        start = len(head) if whole.startswith(head) else _start_by_substitution(rendering, index, head)
        upto = rendering.upto(index + 1)
        end = len(upto) if whole.startswith(upto) else _end_by_substitution(rendering, index)
        if start < behind or end < start:
            raise rendering.unstable(index, "its own text")
        behind = start + _without_tail(whole[start:end], closers)
        if not whole[start:behind].endswith(ends):  # the next role's token may be the end token of this turn
            behind += next((len(token) for token in ends if whole.startswith(token, behind)), 0)
        turns.append(AssistantTurn(index, start, behind))
    return turns


def answer_start(rendering: Rendering, turn: AssistantTurn, thinking: tuple[str, str] | None) -> int:
    """Where a turn's answer begins, behind its thinking and what the template writes around that.

    ``thinking`` is (thinking block, answer) of a content that holds both.

    Raises:
        DataError: the two cannot be told apart.
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
    if first == second and not before:  # the template leaves out the content beside calls
        return _behind_thinking(rendering, turn)
    found = _common_prefix(first, second)
    if not whole.startswith(found) or not turn.start <= len(found) <= turn.end:
        raise rendering.unstable(turn.index, "its thinking")
    return len(found)


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
    """Where the text of a cut answer ends: behind it the target wrote nothing, calls included.

    Raises:
        DataError: text and end cannot be told apart.
    """
    message = rendering.messages[turn.index]
    name = next(
        (name for name in ("content", "reasoning_content") if str(message.get(name) or "").strip()), None
    )
    if name is None:
        return turn.start
    text = str(message[name]).rstrip()
    first, second = (rendering.replaced(turn.index, {**message, name: text + probe}) for probe in _PROBES)
    if first == second:  # the template leaves it out
        return turn.start
    found = _common_prefix(first, second)
    if not rendering.whole.startswith(found) or not turn.start <= len(found) <= turn.end:
        raise rendering.unstable(turn.index, "where it was cut")
    return len(found)


def _start_by_substitution(rendering: Rendering, index: int, head: str) -> int:
    """Start of a turn before which the template writes something else once it is there."""
    base = rendering.upto(index)
    ((first, second),) = rendering.probed(index, len(rendering.messages))
    found, floor = _common_prefix(first, second), _content_place(rendering, index - 1)
    header = head[len(base) :]
    if not header:  # then the target itself writes the space that the template puts before an answer
        header, found = _end_of(rendering, index - 1), found.rstrip()
    if head.startswith(base):
        start = _behind_header(found, header, floor)
        if start is None:  # turns of the past may have the header of a turn without thinking
            start = _behind_header(found, rendering.prompt_without_thinking(index), floor)
        if start is not None and rendering.whole.startswith(found[:start]):
            return start
    raise rendering.unstable(index, "what stands before it")


def _end_of(rendering: Rendering, index: int) -> str:
    """What the template writes behind the content of a message when nothing follows; empty if that is not known."""
    try:
        ((first, second),) = rendering.probed(index, index + 1)
    except DataError:
        return ""
    return _common_suffix(first, second)


def _behind_header(found: str, header: str, floor: int) -> int | None:
    at = found.rfind(header)
    return at + len(header) if at >= floor else _behind_part(found, header, floor)


def _behind_part(found: str, header: str, floor: int) -> int | None:
    """The end of ``found`` where that is the beginning of a header.

    Of a header that ends in an empty thinking block, earlier turns may show the beginning only.
    """
    for length in range(len(header) - 1, 0, -1):
        if not header[:length].strip():
            break
        if found.endswith(header[:length]) and len(found) - length >= floor:
            return len(found)
    return None


def _content_place(rendering: Rendering, index: int) -> int:
    """Where the content of a message stands, 0 when the template does not write it."""
    message = rendering.messages[index]
    first, second = (rendering.replaced(index, {**message, "content": text}) for text in _PROBES)
    return 0 if first == second else len(_common_prefix(first, second))


def _end_by_substitution(rendering: Rendering, index: int) -> int:
    """End of a turn that the template writes differently once others follow."""
    pairs = rendering.probed(index, len(rendering.messages), index + 1)
    after, tail = (_common_suffix(*pair) for pair in pairs)
    if not after.startswith(tail):
        tail = _own_end(after, closing_tokens(rendering.tokenizer)) or tail
    if not rendering.whole.endswith(after) or not after.startswith(tail):
        raise rendering.unstable(index, "what stands behind it")
    return len(rendering.whole) - len(after) + len(tail)


def _own_end(after: str, closers: tuple[str, ...]) -> str:
    """The token that ends a turn of the past, if another one begins the next turn: gpt-oss ends its last turn with
    another token.
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
    """Texts of all added tokens; one of them ends a turn in most templates."""
    return tuple(token.content for token in tokenizer.backend.get_added_tokens_decoder().values())


def _without_tail(turn: str, closers: tuple[str, ...]) -> int:
    """Length of a turn without the white space behind its end-of-turn token, if it has one."""
    bare = turn.rstrip()
    return len(bare) if bare.endswith(closers) else len(turn)


def marked_spans(rendering: Rendering) -> list[tuple[int, int]] | None:
    """(start, end) in characters of what the template's generation tags enclose, None where they say nothing.

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
        rendering.tokenizer.forms(tools).shape(rendering.messages),
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
