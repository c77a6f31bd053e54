"""Count the tokens of documents: batches in, one tally out, with any engine.

In a conversation, only tokens that begin inside a span of the assistant count. Only the stretches between
proven cuts around the ends of a span are encoded with offsets; text between two stretches is entirely inside
or outside.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...core.errors import DataError, UsageError
from ...corpus.chat.conversation import Message, is_empty
from ...corpus.chat.forms import ContentFormat
from ...corpus.chat.render import ChatOptions, RenderedChat, mask_tokens, render_chats
from ...corpus.prepared.dataset import batched, is_encodable
from ...corpus.sources.bytes import Problems
from ...corpus.sources.document import Document, SourceOptions
from ...corpus.tokenizer.cuts import CutRule
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .engines import PlainEngine, count_rows
from .table import CountMode, Tally

_BATCH_DOCUMENTS = 8192
_BATCH_CHARACTERS = 4 << 20
SHARD_BYTES = 256 << 20
_Read = tuple[list[str], list[bool], list[int], list[Document]]
"""Texts to count, whether each begins a text, additional ids to count, and the documents of all these."""


@dataclass(frozen=True)
class CountOptions:
    """Options for counting a corpus.

    ``engine`` None selects the fastest engine that is proven; ``shard_bytes`` is the unit of division and of
    resuming. With ``tokens``, documents are counted in input order until they hold that many tokens; the last
    document is counted whole. ``ray`` is the address of a cluster that counts, instead of ``workers``.
    """

    mode: CountMode = "corpus"
    sources: SourceOptions = field(default_factory=SourceOptions)
    engine: str | None = None
    workers: int = 1
    shard_bytes: int = SHARD_BYTES
    content_format: ContentFormat = "auto"
    tokens: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.ray is not None and self.workers > 1:
            raise UsageError(
                "--workers and --ray exclude each other: the cluster's size is the number of workers",
                got=f"--workers {self.workers} --ray {self.ray}",
                remedy="leave --workers out",
            )

    def deciding(self, tokenizer: TextTokenizer) -> dict[str, Any]:
        """Return what the counts of a shard depend on, apart from its bytes."""
        source = self.sources
        facts: dict[str, Any] = {
            "fingerprint": tokenizer.fingerprint,
            "mode": self.mode,
            "text_field": source.text_field,
            "text_unit": source.text_unit,
            "separator": source.separator,
            "sample": source.sample,
            "seed": source.seed if source.sample is not None else None,
            "strict": source.strict,
        }
        if self.mode == "assistant":
            facts["template"] = [tokenizer.templates_digest, self.content_format]
        return facts


class TokenCounter:
    """Counter of documents: counts (V,), documents, UTF-8 bytes.

    Args:
        tokenizer: tokenizer that renders conversations in mode ``assistant``.
        engine: engine that counts plain texts, without special tokens.
        cut: where a conversation may be cut; None to encode it whole.
    """

    def __init__(
        self, tokenizer: TextTokenizer, engine: PlainEngine, mode: CountMode, cut: CutRule | None
    ) -> None:
        self._tokenizer, self._engine, self._mode, self._cut = tokenizer, engine, mode, cut
        self.tally = Tally(np.zeros(tokenizer.vocab_size, dtype=np.int64), 0, 0)

    def add(
        self,
        documents: Iterable[Document],
        problems: Problems,
        on_batch: Callable[[int], None] | None = None,
        *,
        goal: float = math.inf,
    ) -> None:
        """Count documents in bounded batches; ``on_batch`` is called with the token count of each batch.

        Counting stops after the first document with which the tally holds ``goal`` tokens. Problems of the
        whole batch with that document are recorded.
        """
        for batch in prefetched(batched(documents, number=_BATCH_DOCUMENTS, characters=_BATCH_CHARACTERS)):
            part = self._count(batch, problems)
            wanted = goal - self.tally.tokens
            end = len(batch) if part.tokens < wanted else self._end(batch, wanted)
            if end < len(batch):
                part = self._count(batch[:end], Problems(shown=0))
            self.tally += part
            if on_batch is not None:
                on_batch(part.tokens)
            if end < len(batch):
                return

    def _count(self, batch: list[Document], problems: Problems) -> Tally:
        read = self._answers if self._mode == "assistant" else self._texts
        texts, begins, ids, counted = read(batch, problems)
        counts = self._engine.count(texts, begins)
        return Tally(
            counts + count_rows([ids], len(counts)),
            sum(document.begins for document in counted),
            sum(self._size(document) for document in counted),
        )

    def _end(self, batch: list[Document], wanted: float) -> int:
        """Return the length of the shortest run of whole documents at the start of a batch with these tokens."""

        def tokens(end: int) -> int:
            return self._count(batch[:end], Problems(shown=0)).tokens

        end = bisect_left(range(len(batch) + 1), wanted, key=tokens)
        while end < len(batch) and not batch[end].begins:
            end += 1
        return end

    def _size(self, document: Document) -> int:
        if self._mode == "assistant":
            turns = (turn for turn in document.messages or () if turn["role"] == "assistant")
            return sum(_utf8(str(turn["content"])) for turn in turns)
        return _utf8(document.plain_text())

    def _texts(self, batch: list[Document], problems: Problems) -> _Read:
        for document in batch:
            if document.messages is not None and document.text is None:
                problems.unread(document.beside_contents(), document.source, document.line)
        if self._tokenizer.beyond:
            batch = [document for document in batch if is_encodable(self._tokenizer, document, problems)]
        return (
            [document.plain_text() for document in batch],
            [document.begins for document in batch],
            [],
            batch,
        )

    def _answers(self, batch: list[Document], problems: Problems) -> _Read:
        talks = [document for document in batch if document.messages is not None]
        answers = read_answers(self._tokenizer, self._cut, talks)
        ids: list[int] = []
        texts: list[str] = []
        counted = []
        for document in batch:
            answer = next(answers) if document.messages is not None else None
            if isinstance(answer, DataError):
                problems.take(answer, document.source, document.line)
            elif answer is not None:
                problems.unread(answer.unread, document.source, document.line)
                ids += answer.ids
                texts += answer.texts
                counted.append(document)
            elif document.begins:
                problems.add("plain text has no assistant's turns to count", document.source, document.line)
        return texts, [False] * len(texts), ids, counted


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


Item = TypeVar("Item")


def prefetched(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items in order, produced by a thread that is one item ahead.

    Useful if the consumer releases the GIL. Exceptions of ``items`` are raised here in order. If the
    iteration is abandoned, the thread finishes only its current item.
    """
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "prefetch") as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield item  # type: ignore[misc]


class Answers(NamedTuple):
    """Ids of the assistant's tokens, texts after a cut that are entirely the assistant's, and unread keys."""

    ids: list[int]
    texts: list[str]
    unread: Mapping[str, int]


def read_answers(
    tokenizer: TextTokenizer, rule: CutRule | None, talks: Sequence[Document]
) -> Iterator[Answers | DataError]:
    """Yield what the assistant wrote in each conversation, or why it cannot be rendered and masked.

    Raises:
        DataError: the chat template omits message contents, so no conversation can be used.
    """
    renderings = [_rendered(tokenizer, talk) for talk in talks]
    chats = [chat for chat in renderings if isinstance(chat, RenderedChat)]
    apart: Iterator[Answers | None] = iter([None] * len(chats)) if rule is None else _apart(rule, chats)
    for talk, chat in zip(talks, renderings):
        if isinstance(chat, DataError):
            yield chat
        else:
            yield next(apart) or _whole(tokenizer, chat, talk.messages or ())


def _rendered(tokenizer: TextTokenizer, talk: Document) -> RenderedChat | DataError:
    if not is_empty(talk.tools):
        tokenizer.forms(talk.tools)
    try:
        (chat,) = render_chats(
            tokenizer, talk.messages or (), ChatOptions(), tools=talk.tools, variables=talk.variables
        )
        tokenizer.check_text(chat.text)
    except DataError as error:
        return error
    return chat


def _whole(tokenizer: TextTokenizer, chat: RenderedChat, talk: Sequence[Message]) -> Answers | DataError:
    ids, offsets = tokenizer.encode_with_offsets(chat.text)
    try:
        mask = mask_tokens(chat, offsets, talk)
    except DataError as error:
        return error
    return Answers([token for token, learnt in zip(ids, mask) if learnt], [], chat.unread)


def _apart(rule: CutRule, chats: Sequence[RenderedChat]) -> Iterator[Answers | None]:
    """Yield the answers of each chat, or None if only the whole text shows whether the mask is constant."""
    stretches = [_stretches(rule, chat) for chat in chats]
    texts = [chat.text[start:stop] for chat, some in zip(chats, stretches) for start, stop in some]
    rows = iter(rule.encode_with_starts(texts, [start == 0 for some in stretches for start, _ in some]))
    for chat, some in zip(chats, stretches):
        ends = [at for span in chat.spans for at in span]  # a place after an odd number of ends is inside
        tokens = [
            (token, bisect_right(ends, start + at) % 2) for start, _ in some for token, at in next(rows)
        ]
        ids = [token for token, inside in tokens if inside]
        between = [
            chat.text[stop:start] for (_, stop), (start, _) in pairwise(some) if bisect_right(ends, stop) % 2
        ]
        yield Answers(ids, between, chat.unread) if 0 < len(ids) < len(tokens) else None


def _stretches(rule: CutRule, chat: RenderedChat) -> list[tuple[int, int]]:
    """Return (start, stop) around all ends of the spans, merged if they touch."""
    stretches: list[tuple[int, int]] = []
    for at in (at for span in chat.spans for at in span):
        start, stop = rule.around(chat.text, at)
        if stretches and start <= stretches[-1][1]:
            start = stretches.pop()[0]
        stretches.append((start, stop))
    return stretches
