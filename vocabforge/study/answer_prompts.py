"""What the target is asked in a study: prompts of training conversations and questions, cut where they are too long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import DataError, UsageError
from ..corpus.conversation import Message, parse_conversation
from ..corpus.reading import ByteSpan, Problems, text_lines
from ..corpus.tokenizer import TextTokenizer, encode_prompt
from ..evaluate.benchmarks import Question

GAP = " … "  # stands where the middle of a text was
# A template that lets its model think opens an answer without thoughts with an empty block. It belongs to the prompt:
# else the first tokens of every answer would be the same, and accepted for nothing.
TEMPLATE = {"enable_thinking": False}
_FOR_LEARNERS = ("cut", "loss_weight")  # of a message; no template reads them


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as the target reads it.

    Attributes:
        messages: the conversation, what was cut left out.
        ids: its token ids, the header of the assistant's turn included.
        shortened: something was cut.
    """

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    shortened: bool = False


@dataclass(frozen=True)
class TrainingPrompt:
    """Everything before one turn of the assistant.

    Attributes:
        messages: at least one.
        source: the conversation's, as the file names it.
        line: 1-based line of the file.
    """

    messages: tuple[Message, ...]
    source: str
    line: int


def _encoded(tokenizer: TextTokenizer, messages: Sequence[Message]) -> list[int]:
    return encode_prompt(tokenizer, messages, **TEMPLATE)


def fit_prompt(tokenizer: TextTokenizer, messages: Sequence[Message], limit: int) -> FittedPrompt:
    """A prompt of at most ``limit`` tokens.

    A longer one loses its earliest turns (never the system message), then the middle of its last message (of the
    longest one, where that is not enough), so that the template's own tokens, the beginning of the text and its end
    stay.

    Raises:
        UsageError: even the template's tokens with a token of text are more than ``limit``.
        DataError: there is no chat template, or it refuses the conversation.
    """
    kept = list(messages)
    ids = _encoded(tokenizer, kept)
    if len(ids) <= limit:
        return FittedPrompt(tuple(kept), tuple(ids))
    system = 1 if kept[0]["role"] == "system" else 0
    for start in range(system + 1, len(kept)):
        if kept[start]["role"] == "user":
            fewer = [*kept[:system], *kept[start:]]
            ids = _encoded(tokenizer, fewer)
            if len(ids) <= limit:
                return FittedPrompt(tuple(fewer), tuple(ids), True)
    last = next((at for at in reversed(range(len(kept))) if kept[at]["role"] == "user"), len(kept) - 1)
    return _without_middle(tokenizer, [*kept[:system], *kept[max(last, system) :]], limit)


def _without_middle(tokenizer: TextTokenizer, messages: list[Message], limit: int) -> FittedPrompt:
    """The last message of a conversation cut until its prompt fits, or the longest one, where that is not enough."""
    longest = max(range(len(messages)), key=lambda at: len(str(messages[at]["content"] or "")))
    for at in dict.fromkeys((len(messages) - 1, longest)):
        if (found := _cut(tokenizer, messages, at, limit)) is not None:
            return found
    raise UsageError(
        "a prompt cannot be made short enough",
        got=f"more than {limit:,} tokens with hardly any of its text",
        expected="room for the chat template and a text",
        source=f"prompt {str(messages[-1]['content'])[:60]!r}",
        remedy="raise answers.prompt_tokens, or target.max_position_embeddings",
    )


def _cut(tokenizer: TextTokenizer, messages: list[Message], at: int, limit: int) -> FittedPrompt | None:
    """The conversation without the middle of one message; None where that alone is not enough."""
    text = str(messages[at]["content"] or "")
    _, offsets = tokenizer.encode_with_offsets(text)
    keep = len(offsets)
    shorter, ids = messages, _encoded(tokenizer, messages)
    while (excess := len(ids) - limit) > 0:
        keep -= excess  # the gap's own tokens, and those that form around it, take further rounds
        if keep < 1:
            return None
        head, tail = (keep + 1) // 2, keep // 2
        front = text[: offsets[head - 1][1]]
        back = text[offsets[len(offsets) - tail][0] :] if tail else ""
        shorter = [*messages[:at], {**messages[at], "content": front + GAP + back}, *messages[at + 1 :]]
        ids = _encoded(tokenizer, shorter)
    return FittedPrompt(tuple(shorter), tuple(ids), True)


def question_prompt(tokenizer: TextTokenizer, question: Question, limit: int) -> FittedPrompt:
    """The first turn of a question; see :func:`fit_prompt`."""
    messages: list[Message] = [{"role": "user", "content": question.turns[0]}]
    if question.system:
        messages.insert(0, {"role": "system", "content": question.system})
    return fit_prompt(tokenizer, messages, limit)


def training_prompts(path: Path, count: int) -> list[TrainingPrompt]:
    """Prompts of ``count`` conversations, as many of each source as belong to it, every source met.

    Of a conversation with several turns of the assistant one is taken, by turns the first, the second, ….

    Raises:
        DataError: the file is missing or holds a line that is no conversation, or no turn is the assistant's.
    """
    sources = [source for _, source, _ in _rows(path)]
    chosen = set(spread_by_source(sources, count))
    found: list[TrainingPrompt] = []
    for at, (line, source, row) in enumerate(_rows(path)):
        if at in chosen:
            messages = _conversation(row, path, line)
            turns = [n for n, message in enumerate(messages) if n and message["role"] == "assistant"]
            if turns:
                before = messages[: turns[len(found) % len(turns)]]
                found.append(TrainingPrompt(tuple(map(_plain, before)), source, line))
    if not found:
        raise DataError(
            "no training conversation has a turn of the assistant",
            got=f"{len(sources):,} rows",
            source=path,
            remedy="run the stage data again with sources of conversations",
        )
    return found


def spread_by_source(sources: Sequence[str], count: int) -> list[int]:
    """Ascending places of ``count`` rows: even over the rows of each source, one at least of every source."""
    first = {source: place for place, source in reversed(list(enumerate(sources)))}
    ordered = sorted(range(len(sources)), key=lambda place: first[sources[place]])
    count = min(count, len(ordered))
    chosen = {ordered[number * len(ordered) // count] for number in range(count)}
    met = {sources[place] for place in chosen}
    return sorted(chosen | {place for source, place in first.items() if source not in met})


def _rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """(line, source, row) of every line."""
    if not path.is_file():
        raise DataError("the training conversations are missing", expected=path, remedy="run the stage data")
    for _, line, text in text_lines(ByteSpan(path), Problems(strict=True)):
        try:
            row = json.loads(text)
        except ValueError as error:
            raise DataError(
                "a line of the training conversations is not JSON",
                got=error,
                expected="an object a line",
                source=f"{path}:{line}",
                remedy="run the stage data",
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                "a training conversation is no object",
                got=text[:80],
                expected="an object a line",
                source=f"{path}:{line}",
                remedy="run the stage data",
            )
        yield line, str(row.get("source", "")), row


def _conversation(row: dict[str, Any], path: Path, line: int) -> list[Message]:
    messages = parse_conversation(row)
    if messages is None:
        raise DataError(
            "a row of the training file is no conversation",
            got=sorted(row),
            expected="messages",
            source=f"{path}:{line}",
        )
    return messages


def _plain(message: Message) -> Message:
    return {name: value for name, value in message.items() if name not in _FOR_LEARNERS}
