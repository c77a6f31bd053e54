"""Thinking in answers: where it stands, how it is taken out, and the empty blocks that templates write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from ...core.errors import DataError
from .conversation import Message
from .turns import AssistantTurn, Rendering, answer_start

Thought = tuple[str, str, str]
"""The thinking of a turn; the block as it stands in the content (``""`` when a field holds it); the answer."""


def find_thoughts(
    messages: Sequence[Message], tags: tuple[str, str], expects: Callable[[int], bool]
) -> dict[int, Thought]:
    """The assistant's turns with thinking, by index; ``expects`` says whether a closing tag alone means thinking."""
    opened, closed = tags
    found: dict[int, Thought] = {}
    for index, message in enumerate(messages):
        content = str(message["content"])
        if message["role"] != "assistant":
            continue
        if thought := str(message.get("reasoning_content") or "").strip():
            found[index] = (thought, "", content)
        elif closed in content:  # many leave the opening tag out: the prompt had it
            thought, _, answer = content.partition(closed)
            bare = answer.lstrip()
            if opened not in thought and not expects(index):
                continue
            if opened not in (thought := thought.strip().removeprefix(opened).strip()):
                found[index] = (thought, content[: len(content) - len(bare)], bare)
    return found


def with_cut_thinking(message: Message, tags: tuple[str, str]) -> Message:
    """Move thinking that was cut to the field ``reasoning_content``: of a content, templates write an empty block first."""
    opened, closed = tags
    content = str(message["content"])
    if not message.get("cut") or closed in content or not content.lstrip().startswith(opened):
        return message
    thinking = content.lstrip().removeprefix(opened).lstrip()
    return {**message, "content": "", "reasoning_content": thinking} if thinking else message


def has_thinking(messages: Sequence[Message], opened: str) -> bool:
    """Whether a turn of the assistant holds an opening tag, or thinking in a field of its own."""
    turns = (message for message in messages if message["role"] == "assistant")
    return any(opened in str(turn["content"]) or turn.get("reasoning_content") for turn in turns)


def refuse_half_tags(
    messages: Sequence[Message],
    thoughts: Mapping[int, Thought],
    tags: tuple[str, str],
    expects: Callable[[int], bool],
) -> None:
    """Refuse answers in which thinking would stay, because it is not closed or stands there twice.

    Raises:
        DataError: an answer has a tag beside its thinking block.
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
    """The message without its thinking; where nothing else is left of an answer, it is not to be learnt."""
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    if thought is not None:
        kept["content"] = thought[2]
        if is_thinking_alone(message, thought):
            kept["loss_weight"] = 0
    return kept


def is_thinking_alone(message: Message, thought: Thought) -> bool:
    """Whether an answer is nothing but thinking."""
    return not thought[2].strip() and not message.get("tool_calls")


def may_hold_empty_block(text: str, tags: tuple[str, str]) -> bool:
    """Whether a rendered text holds a thinking block without thinking, or begins within one."""
    opened, closed = map(re.escape, tags)
    return re.search(rf"(?:^|{opened})\s*{closed}", text) is not None


def behind_empty_block(rendering: Rendering, turn: AssistantTurn, tags: tuple[str, str]) -> int:
    """Where a turn without thinking begins: behind the empty block that the template writes, if it does.

    A target that is served with thinking writes its own block, one served without finds it in its prompt.
    """
    opened, closed = tags
    text = rendering.whole[turn.start : turn.end]
    if not text.lstrip().removeprefix(opened).lstrip().startswith(closed):
        return turn.start
    # What a prompt without thinking has more than this one; the rest, even a line break, the target writes.
    header = rendering.upto(turn.index, prompt=True)[len(rendering.upto(turn.index)) :]
    block = rendering.prompt_without_thinking(turn.index).removeprefix(header)
    if block.rstrip().endswith(closed) and text.startswith(block):
        return turn.start + len(block)
    start = answer_start(rendering, turn, None)
    return start if is_empty_block(rendering.whole[turn.start : start], tags) else turn.start


def is_empty_block(text: str, tags: tuple[str, str]) -> bool:
    """Whether a text is a thinking block without thinking; its opening tag may stand in the prompt."""
    return text.strip().removeprefix(tags[0]).strip() == tags[1]
