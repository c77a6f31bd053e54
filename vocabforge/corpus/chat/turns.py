"""Where the assistant's turns stand in a rendered conversation, found by rendering others and comparing.

A turn starts behind the header that the template gives a turn to be generated, and ends with its end-of-turn
token. Where the template writes a turn differently once others follow (Qwen3 drops earlier turns' thinking), the
place is found by rendering the whole with two other contents of that turn and taking what both have in common.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import DataError
from ..tokenizer.tokenizer import TextTokenizer
from .conversation import Message
from .template import generation_spans, marks_generation

_PROBES = ("Xq", "Zw")  # they share neither a first nor a last character


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

    def probed(self, index: int, stop: int | None = None) -> tuple[str, str]:
        """Two renderings whose turn ``index`` has another content, and nothing beside it where that renders."""
        first, second = ({"role": self.messages[index]["role"], "content": text} for text in _PROBES)
        try:
            return self.replaced(index, first, stop), self.replaced(index, second, stop)
        except DataError:  # a tool's answer must follow a call: keep what else the turn holds
            first, second = ({**self.messages[index], "content": text} for text in _PROBES)
            return self.replaced(index, first, stop), self.replaced(index, second, stop)

    def unstable(self, index: int, what: str) -> DataError:
        """The error for a turn that cannot be told apart."""
        return DataError(
            f"the chat template writes turn {index + 1} differently when others follow ({what}), "
            "so the assistant's tokens cannot be distinguished",
            got=f"roles: {roles_of(self.messages)}",
            source=self.tokenizer.source.parent,
            remedy="cut the conversation after one answer, or use a template that writes a turn always alike",
        )


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
    whole = rendering.whole
    closers = closing_tokens(rendering.tokenizer)
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
    found = _common_prefix(
        *(rendering.replaced(turn.index, {**message, "content": before + text}) for text in _PROBES)
    )
    if not whole.startswith(found) or not turn.start <= len(found) <= turn.end:
        raise rendering.unstable(turn.index, "its thinking")
    return len(found)


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
    header = head[len(base) :]
    found = _common_prefix(*rendering.probed(index))
    floor = _content_place(rendering, index - 1)
    if not header:  # then the target itself writes the space that the template puts before an answer
        found = found.rstrip()
    if head.startswith(base):
        at = found.rfind(header)
        start = at + len(header) if at >= floor else _behind_part(found, header, floor)
        if start is not None and rendering.whole.startswith(found[:start]):
            return start
    raise rendering.unstable(index, "what stands before it")


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
    after = _common_suffix(*rendering.probed(index))
    tail = _common_suffix(*rendering.probed(index, index + 1))
    if not rendering.whole.endswith(after) or not after.startswith(tail):
        raise rendering.unstable(index, "what stands behind it")
    return len(rendering.whole) - len(after) + len(tail)


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
