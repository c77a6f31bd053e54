"""The assistant's tokens of a conversation, without the place of each token of the whole text.

A token counts when it begins inside a span that the assistant wrote. Only the stretches between proven cuts around the
ends of a span are encoded with places; what lies between two of them is inside or outside as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from ...corpus.chat.conversation import Message
from ...corpus.chat.render import ChatOptions, RenderedChat, mask_tokens, render_chats
from ...corpus.tokenizer.cuts import CutRule
from ...corpus.tokenizer.tokenizer import TextTokenizer

Answers = tuple[list[int], list[str]]
"""Ids of tokens that the assistant wrote, and texts behind a cut whose tokens it wrote all."""


def read_answers(tokenizer: TextTokenizer, rule: CutRule | None, messages: Sequence[Message]) -> Answers:
    """What the assistant wrote in a conversation.

    Raises:
        DataError: see :func:`vocabforge.corpus.chat.render.render_with_mask`.
    """
    (chat,) = render_chats(tokenizer, messages, ChatOptions())
    found = None if rule is None else _apart(rule, chat)
    if found is not None:
        return found
    ids, offsets = tokenizer.encode_with_offsets(chat.text)
    mask = mask_tokens(chat, offsets, messages)
    return [token for token, learnt in zip(ids, mask) if learnt], []


def _apart(rule: CutRule, chat: RenderedChat) -> Answers | None:
    """None where the mask may be all zero or all one, which only the whole text tells."""
    text, ends = chat.text, [at for span in chat.spans for at in span]

    def inside(at: int) -> bool:
        return bisect_right(ends, at) % 2 == 1

    stretches: list[tuple[int, int]] = []
    for at in ends:
        start, stop = rule.around(text, at)
        if stretches and start <= stretches[-1][1]:
            start = stretches.pop()[0]
        stretches.append((start, stop))
    tokens = [
        (token, inside(start + at))
        for start, stop in stretches
        for token, at in rule.encode_with_starts(text[start:stop], begins=start == 0)
    ]
    ids = [token for token, learnt in tokens if learnt]
    between = pairwise(stretches)
    texts = [text[stop:start] for (_, stop), (start, _) in between if inside(stop)]
    return (ids, texts) if 0 < len(ids) < len(tokens) else None
