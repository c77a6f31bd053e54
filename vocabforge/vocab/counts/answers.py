"""The assistant's tokens of conversations, without the place of each token of the whole text.

A token counts when it begins inside a span that the assistant wrote. Only the stretches between proven cuts around the
ends of a span are encoded with places; what lies between two of them is inside or outside as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...core.errors import DataError
from ...corpus.chat.conversation import Message
from ...corpus.chat.render import ChatOptions, RenderedChat, mask_tokens, render_chats
from ...corpus.tokenizer.cuts import CutRule
from ...corpus.tokenizer.tokenizer import TextTokenizer

Answers = tuple[list[int], list[str]]
"""Ids of tokens that the assistant wrote, and texts behind a cut whose tokens it wrote all."""


def read_answers(
    tokenizer: TextTokenizer, rule: CutRule | None, talks: Sequence[Sequence[Message]]
) -> Iterator[Answers | DataError]:
    """What the assistant wrote in each conversation, or why ``render_with_mask`` refuses it."""
    found = [_rendered(tokenizer, talk) for talk in talks]
    chats = [chat for chat in found if isinstance(chat, RenderedChat)]
    apart: Iterator[Answers | None] = iter([None] * len(chats)) if rule is None else _apart(rule, chats)
    for talk, chat in zip(talks, found):
        if isinstance(chat, DataError):
            yield chat
        else:
            yield next(apart) or _whole(tokenizer, chat, talk)


def _rendered(tokenizer: TextTokenizer, talk: Sequence[Message]) -> RenderedChat | DataError:
    try:
        (chat,) = render_chats(tokenizer, talk, ChatOptions())
    except DataError as error:
        return error
    return chat


def _whole(tokenizer: TextTokenizer, chat: RenderedChat, talk: Sequence[Message]) -> Answers | DataError:
    ids, offsets = tokenizer.encode_with_offsets(chat.text)
    try:
        mask = mask_tokens(chat, offsets, talk)
    except DataError as error:
        return error
    return [token for token, learnt in zip(ids, mask) if learnt], []


def _apart(rule: CutRule, chats: Sequence[RenderedChat]) -> Iterator[Answers | None]:
    """None where the mask may be all zero or all one, which only the whole text tells."""
    stretches = [_stretches(rule, chat) for chat in chats]
    texts = [chat.text[start:stop] for chat, some in zip(chats, stretches) for start, stop in some]
    rows = iter(rule.encode_with_starts(texts, [start == 0 for some in stretches for start, _ in some]))
    for chat, some in zip(chats, stretches):
        ends = [at for span in chat.spans for at in span]  # an odd number of them up to a place: it is inside
        tokens = [
            (token, bisect_right(ends, start + at) % 2) for start, _ in some for token, at in next(rows)
        ]
        ids = [token for token, inside in tokens if inside]
        between = [
            chat.text[stop:start] for (_, stop), (start, _) in pairwise(some) if bisect_right(ends, stop) % 2
        ]
        yield (ids, between) if 0 < len(ids) < len(tokens) else None


def _stretches(rule: CutRule, chat: RenderedChat) -> list[tuple[int, int]]:
    """(start, stop) around all ends of the spans, joined where they touch."""
    found: list[tuple[int, int]] = []
    for at in (at for span in chat.spans for at in span):
        start, stop = rule.around(chat.text, at)
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, stop))
    return found
