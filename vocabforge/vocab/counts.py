"""Counting tokens of documents and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from ..core.errors import DataError
from ..core.files import sha256_file
from ..core.progress import ProgressBar, say
from ..corpus.chat import render_with_mask
from ..corpus.dataset import batched
from ..corpus.sources import Document, Problems, SourceOptions, expand_paths, iter_documents
from ..corpus.tokenizer import TextTokenizer
from .special import SpecialTokens
from .table import CountMode, FrequencyTable, Tally


def count_documents(
    tokenizer: TextTokenizer,
    documents: Iterable[Document],
    *,
    mode: CountMode = "corpus",
    problems: Problems | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> Tally:
    """Count the tokens of documents, in batches of bounded size.

    Args:
        tokenizer: encodes; no special token is added.
        documents: texts or conversations (mode ``corpus`` reads a conversation's contents as one text).
        mode: see :class:`FrequencyTable`.
        problems: collects documents without an assistant's token in mode ``assistant``.
        on_batch: called with the number of tokens of each batch.
    """
    problems = Problems() if problems is None else problems
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    total_documents = total_bytes = 0
    for batch in batched(documents):
        rows: list[list[int]]
        if mode == "corpus":
            texts = [document.plain_text() for document in batch]
            rows = tokenizer.encode_batch(texts)
        else:
            texts, rows = _assistant_rows(tokenizer, batch, problems)
        ids = (
            np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
            if rows
            else np.zeros(0, np.int64)
        )
        counts += np.bincount(ids, minlength=len(counts))
        total_documents += len(rows)
        total_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if on_batch is not None:
            on_batch(len(ids))
    return Tally(counts, total_documents, total_bytes)


def _assistant_rows(
    tokenizer: TextTokenizer, batch: Iterable[Document], problems: Problems
) -> tuple[list[str], list[list[int]]]:
    texts, rows = [], []
    for document in batch:
        if document.messages is None:
            problems.add("plain text has no assistant's turns to count", document.source, document.line)
            continue
        try:
            ids, mask = render_with_mask(tokenizer, document.messages)
        except DataError as error:
            problems.add(error.message, document.source, document.line, error.got)
            continue
        texts += [str(turn["content"]) for turn in document.messages if turn["role"] == "assistant"]
        rows.append([token for token, counted in zip(ids, mask) if counted])
    return texts, rows


def count_files(
    tokenizer: TextTokenizer, paths: Iterable[Path], options: SourceOptions, *, mode: CountMode = "corpus"
) -> FrequencyTable:
    """Count files and folders, with a progress bar; what was skipped is said at the end.

    Raises:
        DataError: unreadable input, nothing to count, or (strict) the first unreadable line.
    """
    if mode == "assistant" and tokenizer.chat_template is None:
        tokenizer.render([])  # raises: says which template is missing, before anything is read
    files = expand_paths(paths)
    sources = {str(file): _hash(file) for file in files}
    problems = Problems(strict=options.strict)
    counted = 0
    with ProgressBar("count tokens", sum(_size(file) for file in files), "B") as bar:

        def show(tokens: int) -> None:
            nonlocal counted
            counted += tokens
            bar.update(note=f"{counted:,} tokens")

        documents = iter_documents(files, options, problems=problems, on_bytes=bar.update)
        tally = count_documents(tokenizer, documents, mode=mode, problems=problems, on_batch=show)
    if summary := problems.summary():
        say(summary)
    if not tally.counts.any():
        raise DataError(
            f"there is nothing to count: the input has no {'token' if tally.documents else 'document'}",
            got=problems.first[0] if problems.first else "only empty files or blank lines",
            expected="text, or JSON rows with a text or a conversation",
            source=", ".join(sources),
        )
    return FrequencyTable(
        tally.counts,
        tally.documents,
        tally.bytes,
        mode,
        tokenizer.fingerprint,
        sources,
        SpecialTokens.of(tokenizer),
    )


def _hash(file: Path) -> str:
    try:
        return sha256_file(file)
    except OSError as error:
        raise DataError("the input cannot be read", got=error.strerror or error, source=file) from error


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise DataError("the input cannot be read", got=error.strerror or error, source=file) from error
