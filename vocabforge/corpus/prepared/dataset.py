"""Training sequences with loss masks from files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...core.cluster import Cluster
from ...core.errors import DataError
from ..chat.conversation import is_empty
from ..chat.render import ChatOptions, RenderedChat, mask_tokens, render_chats
from ..sources.bytes import Problems
from ..sources.document import Document, SourceOptions
from ..sources.shards import Unit, check_marks, make_units, plan_shards, read_shard, shard_mark
from ..tokenizer.tokenizer import TextTokenizer
from .packing import TrainingSequence

_BATCH_DOCUMENTS = 256
_BATCH_CHARACTERS = 1 << 20
_WHOLE = 1 << 62
_UNIT_BYTES = 4 << 20  # read by a worker of a cluster at once; its sequences are held in memory
_SHOWN = 5
_BY_TURN = ("thinking_turns_left_out", "empty_thinking_blocks", "thinking_only_turns", "cut_turns")


@dataclass(frozen=True)
class SequenceOptions:
    """Options for making sequences; ``append_eos`` ends a plain text with the first end token (mask 1)."""

    sources: SourceOptions = field(default_factory=SourceOptions)
    append_eos: bool = False
    chat: ChatOptions = field(default_factory=ChatOptions)


def iter_sequences(
    tokenizer: TextTokenizer,
    files: Iterable[Path],
    options: SequenceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: Callable[[int], None] | None = None,
    facts: Counter[str] | None = None,
) -> Iterator[TrainingSequence]:
    """Yield the sequences of all documents in order, in bounded memory.

    Sequences of one document share their ``document``. A conversation is rendered by the chat template, with
    mask 1 on the assistant's tokens. A plain text gets the tokenizer's prefix (BOS, mask 0) and mask 1 on all
    other tokens. A conversation that cannot be rendered or masked is counted in ``problems``; ``facts``
    counts texts, conversations and the facts of :class:`~vocabforge.corpus.chat.render.RenderedChat`.

    Raises:
        DataError: an unreadable source, a conversation without chat template, or a text of more than 64 MiB.
    """
    problems = Problems(strict=options.sources.strict) if problems is None else problems
    _check_eos(tokenizer, options)
    facts = Counter() if facts is None else facts
    shards = plan_shards(list(files), options.sources, shard_bytes=_WHOLE)
    documents = (
        document
        for shard in shards
        for document in read_shard(shard, options.sources, cut=None, problems=problems, on_bytes=on_bytes)
    )
    yield from _sequences(tokenizer, documents, options, problems, facts)


def cluster_sequences(
    cluster: Cluster,
    tokenizer: TextTokenizer,
    files: Iterable[Path],
    options: SequenceOptions,
    *,
    problems: Problems,
    on_bytes: Callable[[int], None],
    facts: Counter[str],
) -> Iterator[TrainingSequence]:
    """Yield what :func:`iter_sequences` yields, made by the workers of a cluster."""
    _check_eos(tokenizer, options)
    shards = plan_shards(list(files), options.sources, shard_bytes=_UNIT_BYTES)
    units = make_units(shards, _UNIT_BYTES)
    cluster.use(partial(_UnitReader, tokenizer, options))
    given = ((unit, tuple(map(shard_mark, unit))) for unit in units)
    results = cluster.in_order(_UnitReader.read, given)
    for unit, (tokens, learnt, rows, kinds, unit_facts) in zip(units, results):
        problems.kinds.update(kinds)
        facts.update(unit_facts)
        on_bytes(sum(shard.stored_bytes for shard in unit))
        ids, mask, end = tokens.tolist(), learnt.tolist(), 0
        for document, length in rows:
            start, end = end, end + length
            yield TrainingSequence(ids[start:end], mask[start:end], document)


class _UnitReader:
    """Reader in a worker; it names the first skipped lines of all its units."""

    def __init__(self, tokenizer: TextTokenizer, options: SequenceOptions) -> None:
        self._tokenizer, self._options, self._shown = tokenizer, options, _SHOWN

    def read(self, unit: Unit, marks: Sequence[str]) -> tuple[Any, ...]:
        """Return a unit's sequences, joined: ids, mask, documents with lengths; and problems, and facts."""
        check_marks(unit, marks)
        sources, facts = self._options.sources, Counter[str]()
        problems = Problems(strict=sources.strict, shown=self._shown)
        documents = (
            document for shard in unit for document in read_shard(shard, sources, cut=None, problems=problems)
        )
        sequences = list(_sequences(self._tokenizer, documents, self._options, problems, facts))
        self._shown -= len(problems.first)
        ids = np.fromiter((token for sequence in sequences for token in sequence.ids), np.int32)
        mask = np.fromiter((learnt for sequence in sequences for learnt in sequence.loss_mask), np.uint8)
        rows = [(sequence.document, len(sequence.ids)) for sequence in sequences]
        return ids, mask, rows, problems.kinds, facts


def _check_eos(tokenizer: TextTokenizer, options: SequenceOptions) -> None:
    if options.append_eos and not tokenizer.eos_ids:
        raise DataError(
            "no end token is known to append", source=tokenizer.source, remedy="leave append_eos off"
        )


def _sequences(
    tokenizer: TextTokenizer,
    documents: Iterable[Document],
    options: SequenceOptions,
    problems: Problems,
    facts: Counter[str],
) -> Iterator[TrainingSequence]:
    tokenizer = replace(tokenizer, content_format=options.chat.content_format)
    for batch in batched(documents):
        batch = [d for d in batch if d.messages is not None or is_encodable(tokenizer, d, problems)]
        texts = iter(
            tokenizer.encode_batch([d.text or "" for d in batch if d.messages is None], add_special=True)
        )
        talks = iter(_conversations(tokenizer, batch, options.chat, problems, facts))
        for document in batch:
            if document.messages is None:
                facts["texts"] += 1
                yield _text_sequence(tokenizer, next(texts), document, append_eos=options.append_eos)
            else:
                yield from next(talks)


def is_encodable(tokenizer: TextTokenizer, document: Document, problems: Problems) -> bool:
    """Return whether the model has a row for every token of a document's text; record it if not."""
    try:
        tokenizer.check_text(document.plain_text())
    except DataError as error:
        problems.take(error, document.source, document.line)
        return False
    return True


def batched(
    documents: Iterable[Document], *, number: int = _BATCH_DOCUMENTS, characters: int = _BATCH_CHARACTERS
) -> Iterator[list[Document]]:
    """Yield documents in lists bounded in number and characters; a longer document is alone in its list."""
    held: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.plain_text())
        if held and (len(held) >= number or size + length > characters):
            yield held
            held, size = [], 0
        held.append(document)
        size += length
    if held:
        yield held


def _text_sequence(
    tokenizer: TextTokenizer, ids: list[int], document: Document, *, append_eos: bool
) -> TrainingSequence:
    if append_eos and ids[-1:] != [tokenizer.eos_ids[0]]:
        ids = [*ids, tokenizer.eos_ids[0]]
    prefix = (
        len(tokenizer.prefix_ids) if tuple(ids[: len(tokenizer.prefix_ids)]) == tokenizer.prefix_ids else 0
    )
    return TrainingSequence(ids, [0] * prefix + [1] * (len(ids) - prefix), document)


def _conversations(
    tokenizer: TextTokenizer,
    batch: list[Document],
    options: ChatOptions,
    problems: Problems,
    facts: Counter[str],
) -> list[list[TrainingSequence]]:
    """Return the sequences of each conversation of a batch; all texts are encoded together, on all cores."""
    documents = [document for document in batch if document.messages is not None]
    rendered = [_rendered(tokenizer, document, options, problems) for document in documents]
    texts = [chat.text for chats in rendered for chat in chats]
    encoded = iter(tokenizer.backend.encode_batch(texts, add_special_tokens=False) if texts else ())
    sequences: list[list[TrainingSequence]] = []
    for document, chats in zip(documents, rendered):
        sequences.append([])
        for chat, row in [(chat, next(encoded)) for chat in chats]:
            try:
                mask = mask_tokens(chat, row.offsets, document.messages or ())
            except DataError as error:
                problems.take(error, document.source, document.line)
                continue
            sequences[-1].append(TrainingSequence(row.ids, mask, document))
        if sequences[-1]:
            facts.update(_facts_of(chats), conversations=1)
    return sequences


def _facts_of(chats: list[RenderedChat]) -> Counter[str]:
    """Return the facts of one conversation; facts common to its renderings count once."""
    sums = {name: sum(chat.facts[name] for chat in chats) for name in _BY_TURN}
    flags = {name for chat in chats for name, number in chat.facts.items() if number and name not in sums}
    told = {name: number for name, number in sums.items() if number or name == "thinking_turns_left_out"}
    return Counter(dict.fromkeys(flags, 1) | told)


def _rendered(
    tokenizer: TextTokenizer, document: Document, options: ChatOptions, problems: Problems
) -> list[RenderedChat]:
    # Raises if no row of the file can be used: no template, or a template that omits message contents.
    tokenizer.forms()
    if not is_empty(document.tools):
        tokenizer.forms(document.tools)
    try:
        chats = list(
            render_chats(
                tokenizer,
                document.messages or [],
                options,
                tools=document.tools,
                variables=document.variables,
            )
        )
        for chat in chats:
            tokenizer.check_text(chat.text)
    except DataError as error:
        problems.take(error, document.source, document.line)
        return []
    for chat in chats:
        problems.unread(chat.unread, document.source, document.line)
    return chats
