"""Render conversations with the loss mask of the assistant's tokens (the only implementation of the mask)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import DataError, UsageError
from .conversation import INTERNAL, UNREAD, Message, is_empty, key_name, read_tools
from .forms import ContentFormat
from .template import mentions
from .thinking import (
    Thought,
    behind_empty_block,
    find_thoughts,
    has_thinking,
    is_empty_block,
    is_thinking_alone,
    may_hold_empty_block,
    refuse_half_tags,
    with_cut_thinking,
    without_thinking,
)
from .turns import (
    THINKING_SWITCHES,
    AssistantTurn,
    Rendering,
    answer_start,
    assistant_turns,
    cut_end,
    marked_spans,
    roles_of,
)

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import TextTokenizer

_HANDLED = INTERNAL | {"role", "content", "reasoning_content", "tool_calls"}


@dataclass(frozen=True)
class ChatOptions:
    """Options for rendering a conversation and selecting the text that is learnt.

    Attributes:
        thinking: ``keep``: thinking blocks are rendered by the template and learnt. ``mask``: they are
            rendered but not learnt. ``drop``: they are removed before rendering, and the template's thinking
            is turned off.
        tools: ``skip`` skips conversations with a tool list, a call or a result.
        answers: ``all``: every assistant turn is learnt, in one rendering. ``last``: only the turns after the
            last question are learnt. ``each``: one rendering per question, which ends with its answer; only
            this answer is learnt, in exactly the context of a served target.
        thinking_tags: opening and closing tag of a thinking block in a content.
        variables: additional template variables (``date_string``, ``reasoning_effort``, ...).
        content_format: form in which contents are passed to the template.
    """

    thinking: Literal["keep", "drop", "mask"] = "keep"
    tools: Literal["keep", "skip"] = "keep"
    answers: Literal["all", "last", "each"] = "all"
    thinking_tags: tuple[str, str] = ("<think>", "</think>")
    variables: Mapping[str, Any] = field(default_factory=dict)
    content_format: ContentFormat = "auto"

    def __post_init__(self) -> None:
        if not all(self.thinking_tags):
            raise UsageError("a thinking tag is empty", got=self.thinking_tags, expected="two non-empty tags")


@dataclass(frozen=True)
class RenderedChat:
    """A rendered conversation.

    Attributes:
        spans: (start, end) in characters of the learnt text, in order.
        facts: flags (0 or 1) ``thinking``, ``tool_list``, ``tool_calls`` and ``marked`` (spans from
            generation tags); counts of turns ``thinking_turns_left_out`` (by the template),
            ``empty_thinking_blocks`` (written by the template, not learnt), ``thinking_only_turns`` (dropped)
            and ``cut_turns`` (end not learnt).
        unread: parts of the conversation that the template does not read, see :func:`unread_keys`; only in
            the last rendering of a conversation.
    """

    text: str
    spans: Sequence[tuple[int, int]]
    facts: Counter[str]
    unread: Mapping[str, int] = field(default_factory=dict)


def render_with_mask(
    tokenizer: TextTokenizer, messages: Sequence[Message], options: ChatOptions | None = None
) -> tuple[list[int], list[int]]:
    """Render a conversation and return its token ids and loss mask l_t, of equal length.

    l_t is 1 for tokens that the assistant wrote. If the template has ``{% generation %}`` tags, they
    determine the assistant's text. Otherwise it is located by comparing renderings of modified conversations:
    it starts after the generation header and ends with the end-of-turn token. A token counts if it starts
    inside this text.

    Raises:
        DataError: the chat template or an assistant turn is missing, the mask is all zero or all one, or the
            template is unstable.
        UsageError: ``options.answers`` is ``each``, which yields several renderings (:func:`render_chats`).
    """
    options = options or ChatOptions()
    if options.answers == "each":
        raise UsageError("answers: each makes several renderings of a conversation", expected="all or last")
    (chat,) = render_chats(tokenizer, messages, options)
    ids, offsets = tokenizer.encode_with_offsets(chat.text)
    return ids, mask_tokens(chat, offsets, messages)


def mask_tokens(
    chat: RenderedChat, offsets: Sequence[tuple[int, int]], messages: Sequence[Message]
) -> list[int]:
    """Return l_t from the character offsets of the tokens in the rendered text.

    Raises:
        DataError: the mask is all zero or all one.
    """
    mask = [0] * len(offsets)
    last = (len(chat.text), len(chat.text))
    spans = iter([*chat.spans, last])
    start, end = next(spans)
    for index, (at, _) in enumerate(offsets):
        while at >= end and end < len(chat.text):
            start, end = next(spans)
        mask[index] = int(start <= at < end)
    if not any(mask):
        raise DataError(
            "the loss mask is all zero: the assistant's turns are empty",
            got=roles_of(messages),
            expected="an assistant turn with text",
        )
    if all(mask):
        raise DataError(
            "the loss mask is all one: the chat template writes nothing but the assistant's text",
            got=roles_of(messages),
            expected="a conversation with a prompt",
        )
    return mask


def render_chats(
    tokenizer: TextTokenizer,
    messages: Sequence[Message],
    options: ChatOptions,
    *,
    tools: Any = None,
    variables: Mapping[str, Any] | None = None,
) -> Iterator[RenderedChat]:
    """Yield the renderings of a conversation: one, or one per question with ``answers: each``.

    ``variables`` are the row's template variables; they override those of ``options``, but not ``drop``.

    Raises:
        DataError: see :func:`render_with_mask`; also if ``options.tools`` skips the conversation, or the
            template does not write its tool calls.
    """
    called = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    listed = read_tools(tools)
    if options.tools == "skip" and (called or listed):
        raise DataError(
            "the conversation uses tools, which are to be skipped",
            got=roles_of(messages),
            expected="no tool list, no tool call and no tool result",
        )
    template = tokenizer.template_for(listed)
    own = dict(variables or {})
    names: dict[str, Any] = {**({"tools": listed} if listed else {}), **options.variables, **own}
    if tokenizer.forms(listed, names).thinking is not None:
        messages = [with_cut_thinking(message, options.thinking_tags) for message in messages]
    opened, closed = options.thinking_tags
    known = closed in template or has_thinking(messages, opened)

    def expects(at: int) -> bool:
        """Return whether a closing tag alone marks thinking.

        It does if the template contains the tag, any turn has an opening tag or separate thinking, or the
        prompt opens the block.
        """
        if known:
            return True
        return tokenizer.render(messages[:at], add_generation_prompt=True, **names).rstrip().endswith(opened)

    thoughts = find_thoughts(messages, options.thinking_tags, expects)
    alone: set[int] = set()
    if options.thinking != "keep":
        refuse_half_tags(messages, thoughts, options.thinking_tags, expects)
    if options.thinking == "drop":
        alone = {at for at, thought in thoughts.items() if is_thinking_alone(messages[at], thought)}
        messages = [without_thinking(message, thoughts.get(at)) for at, message in enumerate(messages)]
        names |= {name: False for name in THINKING_SWITCHES if name not in options.variables}
    parts = list(_parts(messages, options.answers))
    for stop, first in parts:
        rendering = Rendering(tokenizer, messages[:stop], names)
        facts = Counter(thinking=int(any(at < stop for at in thoughts)), tool_list=int(listed is not None))
        facts["tool_calls"] = int(any(message.get("tool_calls") for message in messages[:stop]))
        if options.thinking != "drop":
            facts["thinking_turns_left_out"] = sum(
                first <= at < stop and thought not in rendering.whole
                for at, (thought, _, _) in thoughts.items()
            )
        if left := sum(first <= at < stop for at in alone):
            facts["thinking_only_turns"] = left
        chat = _rendered(rendering, first, options, thoughts, facts)
        if stop == parts[-1][0]:
            _check_calls(rendering)
            chat = replace(chat, unread=unread_keys(rendering, own))
        yield chat


def _check_calls(rendering: Rendering) -> None:
    """Refuse a conversation whose calls do not reach the text, which would train on empty turns."""
    called = any(message.get("tool_calls") for message in rendering.messages)
    if called and not _changes(rendering, partial(_without, "tool_calls")):
        raise DataError(
            "the chat template does not write tool calls",
            got=roles_of(rendering.messages),
            expected="a template that reads tool_calls (some do only with a tool list)",
            source=rendering.tokenizer.source.parent,
        )


def unread_keys(rendering: Rendering, own: Mapping[str, Any]) -> Counter[str]:
    """Count the keys that a rendering omits, as ``KEY in turns`` or, for keys of the row, ``KEY in rows``.

    If the template names a key of the turns, the key counts as omitted only if the text is the same without
    it. ``own`` are the row's template variables. Calls and thinking are also keys. Omitting the thinking of
    earlier turns does not count.
    """
    tokenizer, messages, tools = rendering.tokenizer, rendering.messages, rendering.variables.get("tools")
    template, forms = tokenizer.template_for(tools), tokenizer.forms(tools, rendering.variables)
    unread: Counter[str] = Counter()
    for index, message in enumerate(messages):
        content = str(message["content"]).strip()
        unread.update(f"{name} in turns" for name in message.get(UNREAD, ()))
        unread.update(
            f"{key} of tool_calls in turns" for key in _call_keys(message) if not mentions(template, key)
        )
        if content and content not in rendering.whole and not message.get("tool_calls"):
            unread[f"content of {message['role']} in turns"] += not _depends(rendering, index)
        if forms.thinking is None and message.get("reasoning_content"):
            unread[f"{key_name(message, 'reasoning_content')} in turns"] += 1
    extra = Counter(
        key
        for message in messages
        for key, value in message.items()
        if key not in _HANDLED and not is_empty(value)
    )
    for key, count in extra.items():
        if not (mentions(template, key) and _changes(rendering, partial(_without, key))):
            unread[f"{key} in turns"] += count
    calls = [(message, len(message["tool_calls"])) for message in messages if message.get("tool_calls")]
    several = sum(number > 1 for _, number in calls)
    if several and not _changes(rendering, _with_first_call):
        unread["tool_calls after the first in turns"] += several
    beside = sum(bool(str(message["content"]).strip()) for message, _ in calls)
    if beside and not _changes(rendering, _without_text_beside_calls):
        unread["content beside tool_calls in turns"] += beside
    if tools and not forms.tools:
        unread["tools in rows"] += 1
    for key in own:
        if not mentions(template, key):
            of = "" if key == "documents" else " of chat_template_kwargs"
            unread[f"{key}{of} in rows"] += 1
    return +unread


def _call_keys(message: Message) -> set[str]:
    """Return the keys of a turn's calls that not every call has."""
    calls = message.get("tool_calls") or ()
    outer = {key for call in calls for key in call} - {"id", "type", "function"}
    return outer | {key for call in calls for key in call["function"]} - {"name", "arguments"}


def _depends(rendering: Rendering, index: int) -> bool:
    return _changes(
        rendering,
        lambda message: {**message, "content": ""} if message is rendering.messages[index] else message,
    )


def _changes(rendering: Rendering, change: Callable[[Message], Message]) -> bool:
    """Return whether applying ``change`` to every turn alters the text or makes the template reject it."""
    changed = Rendering(
        rendering.tokenizer, [change(turn) for turn in rendering.messages], rendering.variables
    )
    try:
        return changed.whole != rendering.whole
    except DataError:
        return True


def _without(key: str, message: Message) -> Message:
    return {name: value for name, value in message.items() if name != key}


def _with_first_call(message: Message) -> Message:
    return {**message, "tool_calls": message["tool_calls"][:1]} if message.get("tool_calls") else message


def _without_text_beside_calls(message: Message) -> Message:
    return {**message, "content": ""} if message.get("tool_calls") else message


def _parts(messages: Sequence[Message], answers: str) -> Iterator[tuple[int, int]]:
    """Yield (number of messages, index of the first learnt message) for each rendering."""
    asked = [at for at, message in enumerate(messages) if message["role"] == "user"]
    ends = [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]
    if answers == "all" or not ends or not asked:
        yield len(messages), 0
        return
    # For each question, the last assistant turn before the next question.
    rounds = {max((ask for ask in asked if ask < end), default=0): end for end in ends}
    chosen = list(rounds.items())[-1 if answers == "last" else 0 :]
    learnt = [(ask, end) for ask, end in chosen if any(map(_is_learnt, messages[max(1, ask) : end + 1]))]
    for ask, end in learnt or chosen[:1]:
        yield end + 1, ask


def _is_learnt(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("loss_weight") != 0


def _rendered(
    rendering: Rendering,
    first: int,
    options: ChatOptions,
    thoughts: Mapping[int, Thought],
    facts: Counter[str],
) -> RenderedChat:
    messages, tags = rendering.messages, options.thinking_tags
    if not any(at and message["role"] == "assistant" for at, message in enumerate(messages)):
        raise DataError(
            "the conversation has no assistant turn that answers, so its loss mask is all zero",
            got=f"roles: {roles_of(messages)}",
            expected="an assistant turn after another turn",
        )
    learnt = [at for at, message in enumerate(messages) if _is_learnt(message)]
    if not any(at >= first for at in learnt):
        raise DataError(
            "every turn of the assistant has loss weight 0 or is dropped thinking, so the loss mask is all zero",
            got=f"roles: {roles_of(messages)}",
            expected="an assistant turn that is learnt",
        )
    marked = marked_spans(rendering)
    if marked is not None:
        facts["marked"] = 1
        plain = options.thinking == "keep" and first == 0
        plain = plain and not any(may_hold_empty_block(rendering.whole[a:b], tags) for a, b in marked)
        plain = plain and not any(m.get("loss_weight") == 0 or m.get("cut") for m in messages)
    try:
        turns = assistant_turns(rendering, [at for at in learnt if at >= first])
        turn_spans = [_span(rendering, turn, options, thoughts, facts) for turn in turns]
    except DataError:
        if marked is None or not plain:
            raise
        return RenderedChat(rendering.whole, marked, facts)  # use the tags alone, headers included
    spans = [(start, end) for start, end in turn_spans if start < end]
    return RenderedChat(rendering.whole, spans if marked is None else _shared(marked, spans), facts)


def _span(
    rendering: Rendering,
    turn: AssistantTurn,
    options: ChatOptions,
    thoughts: Mapping[int, Thought],
    facts: Counter[str],
) -> tuple[int, int]:
    tags, thought = options.thinking_tags, thoughts.get(turn.index)
    if options.thinking == "drop" or (
        thought is not None and thought[0] not in rendering.whole[turn.start : turn.end]
    ):
        thought = None  # the template writes an empty block instead, or nothing
    if thought is None:
        start = behind_empty_block(rendering, turn, tags)
    elif options.thinking == "keep":
        start = turn.start
    else:
        start = answer_start(rendering, turn, thought[1:])
    if thought is None and is_empty_block(rendering.whole[turn.start : start], tags):
        facts["empty_thinking_blocks"] += 1
    if not rendering.messages[turn.index].get("cut"):
        return start, turn.end
    facts["cut_turns"] += 1
    return start, cut_end(rendering, turn)


def _shared(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    both = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return sorted((start, end) for start, end in both if start < end)
