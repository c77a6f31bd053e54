"""Training sequences with loss masks from files, and packing them into rows of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..core.errors import DataError, UsageError
from .chat import render_with_mask
from .sources import Document, Problems, SourceOptions, iter_documents
from .tokenizer import TextTokenizer

_BATCH_DOCUMENTS = 256
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class TrainingSequence:
    """One document: ``ids`` and, as long, ``loss_mask`` (l_t: 1 where the assistant, or the author, wrote).

    ``document`` is what it was made from, None for sequences made by hand.
    """

    ids: list[int]
    loss_mask: list[int]
    document: Document | None = None


@dataclass(frozen=True)
class SequenceOptions:
    """How documents become sequences.

    Attributes:
        sources: how files are cut into documents.
        append_eos: end a plain text with the tokenizer's first end token (its mask is 1). Conversations
            end as their template ends them.
    """

    sources: SourceOptions = field(default_factory=SourceOptions)
    append_eos: bool = False


def iter_sequences(
    tokenizer: TextTokenizer,
    files: Iterable[Path],
    options: SequenceOptions,
    *,
    problems: Problems | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[TrainingSequence]:
    """Sequences of all documents, in order.

    A conversation is rendered by the chat template, with mask 1 on the assistant's tokens. A plain text gets
    the tokenizer's prefix (BOS, mask 0) and mask 1 throughout. A conversation that cannot be rendered or
    masked is counted in ``problems`` and skipped, or an error when strict.

    Raises:
        DataError: see :func:`~vocabforge.corpus.sources.iter_documents`; also when a conversation meets a
            tokenizer without chat template.
    """
    problems = Problems(strict=options.sources.strict) if problems is None else problems
    if options.append_eos and not tokenizer.eos_ids:
        raise DataError(
            "no end token is known to append", source=tokenizer.source, remedy="leave append_eos off"
        )
    documents = iter_documents(files, options.sources, problems=problems, on_bytes=on_bytes)
    for batch in batched(documents):
        texts = iter(
            tokenizer.encode_batch([d.text or "" for d in batch if d.messages is None], add_special=True)
        )
        for document in batch:
            if document.messages is None:
                yield _text_sequence(tokenizer, next(texts), document, append_eos=options.append_eos)
            elif (sequence := _conversation_sequence(tokenizer, document, problems)) is not None:
                yield sequence


def batched(
    documents: Iterable[Document], *, number: int = _BATCH_DOCUMENTS, characters: int = _BATCH_CHARACTERS
) -> Iterator[list[Document]]:
    """Documents in lists bounded in number and in characters (a longer document comes alone)."""
    held: list[Document] = []
    size = 0
    for document in documents:
        length = _length(document)
        if held and (len(held) >= number or size + length > characters):
            yield held
            held, size = [], 0
        held.append(document)
        size += length
    if held:
        yield held


def _length(document: Document) -> int:
    if document.text is not None:
        return len(document.text)
    return sum(len(str(message["content"])) for message in document.messages or ())


def _text_sequence(
    tokenizer: TextTokenizer, ids: list[int], document: Document, *, append_eos: bool
) -> TrainingSequence:
    if append_eos and ids[-1:] != [tokenizer.eos_ids[0]]:
        ids = [*ids, tokenizer.eos_ids[0]]
    prefix = (
        len(tokenizer.prefix_ids) if tuple(ids[: len(tokenizer.prefix_ids)]) == tokenizer.prefix_ids else 0
    )
    return TrainingSequence(ids, [0] * prefix + [1] * (len(ids) - prefix), document)


def _conversation_sequence(
    tokenizer: TextTokenizer, document: Document, problems: Problems
) -> TrainingSequence | None:
    if tokenizer.chat_template is None:
        tokenizer.render(document.messages or ())  # raises: without a template no row of the file can be used
    try:
        return TrainingSequence(*render_with_mask(tokenizer, document.messages or ()), document)
    except DataError as error:
        problems.add(error.message, document.source, document.line, error.got)
        return None


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Sequences packed into N rows of T tokens.

    Attributes:
        input_ids: (N, T) int64, ``pad_id`` where nothing stands.
        loss_mask: (N, T) bool, False on padding.
        document: (N, T) int64, 1, 2, ... for the row's documents, 0 on padding.
        position: (N, T) int64, restarts at 0 with each document, 0 on padding.
        cut_sequences: how many sequences were longer than T.
        cut_tokens: how many tokens they lost.
    """

    input_ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.bool_]
    document: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    cut_sequences: int = 0
    cut_tokens: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def fill(self) -> float:
        """Share of the places that hold a token."""
        return float((self.document > 0).mean())


def pack(sequences: Iterable[TrainingSequence], length: int, *, pad_id: int) -> PackedRows:
    """First-fit packing: each sequence goes whole into the first row with room; longer ones are cut.

    Args:
        sequences: what to pack; empty ones are left out.
        length: T, tokens a row.
        pad_id: token id of the padding.

    Raises:
        UsageError: ``length`` below 1.
        DataError: there is no sequence with a token.
    """
    if length < 1:
        raise UsageError("rows need at least one token", got=length)
    whole = [sequence for sequence in sequences if sequence.ids]
    if not whole:
        raise DataError(
            "there is nothing to train on: no document has a token",
            remedy="check the input files and the options that cut them into documents",
        )
    lengths = np.array([len(sequence.ids) for sequence in whole], dtype=np.int64)
    order = np.argsort(-np.minimum(lengths, length), kind="stable")
    row_of, rows = _first_fit(np.minimum(lengths, length)[order].tolist(), length)
    input_ids = np.full((rows, length), pad_id, dtype=np.int64)  # (N, T)
    loss_mask = np.zeros((rows, length), dtype=np.bool_)
    document = np.zeros((rows, length), dtype=np.int64)
    position = np.zeros((rows, length), dtype=np.int64)
    used, numbers = [0] * rows, [0] * rows
    for sequence, row in zip((whole[i] for i in order), row_of):
        size = min(len(sequence.ids), length)
        place = slice(used[row], used[row] + size)
        used[row] += size
        numbers[row] += 1
        input_ids[row, place] = sequence.ids[:size]
        loss_mask[row, place] = np.asarray(sequence.loss_mask[:size], dtype=np.bool_)
        document[row, place] = numbers[row]
        position[row, place] = np.arange(size)
    over = lengths[lengths > length]
    return PackedRows(input_ids, loss_mask, document, position, len(over), int((over - length).sum()))


def _first_fit(sizes: Sequence[int], length: int) -> tuple[list[int], int]:
    """Row of each size, and the number of rows."""
    room = np.full(len(sizes), length, dtype=np.int64)
    chosen, rows, first_open = [], 0, 0
    for size in sizes:
        while first_open < rows and room[first_open] == 0:
            first_open += 1
        fits = room[first_open : rows + 1] >= size  # the row after the last is always free
        row = first_open + int(np.argmax(fits))
        room[row] -= size
        rows = max(rows, row + 1)
        chosen.append(row)
    return chosen, rows
