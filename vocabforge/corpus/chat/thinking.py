"""Find and remove thinking in answers; detect the empty thinking blocks that templates write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ...core.errors import DataError
from .conversation import Message
from .turns import AssistantTurn, Rendering, answer_start

Thought = tuple[str, str, str]
"""Thinking of a turn, its block as written in the content (``""`` if a field holds it), and the answer."""


def find_thoughts(
    messages: Sequence[Message], tags: tuple[str, str], expects: Callable[[int], bool]
) -> dict[int, Thought]:
    """Return the assistant turns with thinking, by index.

    ``expects(index)`` decides whether a closing tag without an opening tag marks thinking.
    """
    opened, closed = tags
    thoughts: dict[int, Thought] = {}
    for index, message in enumerate(messages):
        content = str(message["content"])
        if message["role"] != "assistant":
            continue
        if thought := str(message.get("reasoning_content") or "").strip():
            thoughts[index] = (thought, "", content)
        elif closed in content:  # the opening tag is often missing: it was part of the prompt
            thought, _, answer = content.partition(closed)
            bare = answer.lstrip()
            if opened not in thought and not expects(index):
                continue
            if opened not in (thought := thought.strip().removeprefix(opened).strip()):
                thoughts[index] = (thought, content[: len(content) - len(bare)], bare)
    return thoughts


def with_cut_thinking(message: Message, tags: tuple[str, str]) -> Message:
    """Move cut thinking to ``reasoning_content``.

    If it stayed in the content, templates would write an empty block before it.
    """
    opened, closed = tags
    content = str(message["content"])
    if not message.get("cut") or closed in content or not content.lstrip().startswith(opened):
        return message
    thinking = content.lstrip().removeprefix(opened).lstrip()
    return {**message, "content": "", "reasoning_content": thinking} if thinking else message


def has_thinking(messages: Sequence[Message], opened: str) -> bool:
    """Return whether an assistant turn contains an opening tag or has thinking in a separate field."""
    turns = (message for message in messages if message["role"] == "assistant")
    return any(opened in str(turn["content"]) or turn.get("reasoning_content") for turn in turns)


def refuse_half_tags(
    messages: Sequence[Message],
    thoughts: Mapping[int, Thought],
    tags: tuple[str, str],
    expects: Callable[[int], bool],
) -> None:
    """Check that no thinking remains in an answer because it is unclosed or occurs twice.

    Raises:
        DataError: an answer has a tag outside its thinking block.
    """
    opened, closed = tags
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        thought = thoughts.get(index)
        rest = str(message["content"]) if thought is None else thought[2]
        if opened in rest or (closed in rest and (thought is not None or expects(index))):
            raise DataError(
                "an answer holds a thinking tag without its other half, so thinking stays in it",
                got=f"turn {index + 1}",
                expected=f"{opened} and {closed}, once each",
            )


def without_thinking(message: Message, thought: Thought | None) -> Message:
    """Return the message without its thinking; an answer with nothing else is not learnt."""
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    if thought is not None:
        kept["content"] = thought[2]
        if is_thinking_alone(message, thought):
            kept["loss_weight"] = 0
    return kept


def is_thinking_alone(message: Message, thought: Thought) -> bool:
    """Return whether an answer has thinking only, without text or calls."""
    return not thought[2].strip() and not message.get("tool_calls")


def may_hold_empty_block(text: str, tags: tuple[str, str]) -> bool:
    """Return whether a rendered text contains an empty thinking block or starts inside one."""
    opened, closed = map(re.escape, tags)
    return re.search(rf"(?:^|{opened})\s*{closed}", text) is not None


def behind_empty_block(rendering: Rendering, turn: AssistantTurn, tags: tuple[str, str]) -> int:
    """Return the start of a turn without thinking, after the template's empty block if there is one.

    A target served with thinking generates the block; without thinking, the block is part of its prompt.
    """
    opened, closed = tags
    text = rendering.whole[turn.start : turn.end]
    if not text.lstrip().removeprefix(opened).lstrip().startswith(closed):
        return turn.start
    # Text that only the prompt without thinking has; the target generates the rest, even line breaks.
    header = rendering.upto(turn.index, prompt=True)[len(rendering.upto(turn.index)) :]
    block = rendering.prompt_without_thinking(turn.index).removeprefix(header)
    if block.rstrip().endswith(closed) and text.startswith(block):
        return turn.start + len(block)
    start = answer_start(rendering, turn, None)
    return start if is_empty_block(rendering.whole[turn.start : start], tags) else turn.start


def is_empty_block(text: str, tags: tuple[str, str]) -> bool:
    """Return whether a text is an empty thinking block; its opening tag may be in the prompt."""
    return text.strip().removeprefix(tags[0]).strip() == tags[1]
