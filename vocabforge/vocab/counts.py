"""Counting tokens: the frequency table, and the artefact that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..core.artifact import open_artifact, write_artifact
from ..core.errors import ArtifactError, DataError
from ..core.files import sha256_file
from ..core.progress import ProgressBar, say
from ..corpus.chat import render_with_mask
from ..corpus.dataset import batched
from ..corpus.sources import Document, Problems, SourceOptions, expand_paths, iter_documents
from ..corpus.tokenizer import TextTokenizer
from .special import SpecialTokens

KIND = "counts"
CountMode = Literal["corpus", "assistant"]
_FILE = "counts.safetensors"


@dataclass(frozen=True, eq=False)
class FrequencyTable:
    """How often each token id occurs.

    Attributes:
        counts: (V,) int64, V = highest token id of the tokenizer + 1.
        documents: documents counted (texts, or conversations).
        bytes: their UTF-8 bytes (mode ``assistant``: of the assistant's contents).
        mode: ``corpus`` counts every token of raw text without BOS or EOS; ``assistant`` only the tokens that
            the assistant writes in rendered conversations.
        fingerprint: the tokenizer's.
        sources: SHA-256 of each stored file by path.
        special: the tokenizer's special ids, so that a subset can be chosen without the tokenizer.
    """

    counts: npt.NDArray[np.int64]
    documents: int
    bytes: int
    mode: CountMode
    fingerprint: str
    sources: Mapping[str, str]
    special: SpecialTokens

    @property
    def tokens(self) -> int:
        """Total of all counts."""
        return int(self.counts.sum())

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def seen(self) -> int:
        """Number of ids with a count."""
        return int(np.count_nonzero(self.counts))


@dataclass(frozen=True, eq=False)
class Tally:
    """What a pass over documents yields: counts (V,) int64, documents, UTF-8 bytes."""

    counts: npt.NDArray[np.int64]
    documents: int
    bytes: int


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


def save_counts(table: FrequencyTable, path: Path, *, overwrite: bool = False) -> None:
    """Write the artefact (kind ``counts``)."""
    meta = {
        "vocab_size": table.vocab_size,
        "tokens": table.tokens,
        "documents": table.documents,
        "bytes": table.bytes,
        "mode": table.mode,
        "fingerprint": table.fingerprint,
        "sources": dict(table.sources),
        "special": table.special.to_json(),
    }
    with write_artifact(path, KIND, meta, overwrite=overwrite) as folder:
        save_file({"counts": np.ascontiguousarray(table.counts)}, folder / _FILE)


def load_counts(path: Path) -> FrequencyTable:
    """Read the artefact back, verified.

    Raises:
        ArtifactError: no such artefact, or one that does not hold what its manifest says.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    try:
        counts = load_file(artifact.file(_FILE))["counts"]
        mode = meta["mode"]
        table = FrequencyTable(
            counts,
            int(meta["documents"]),
            int(meta["bytes"]),
            cast("CountMode", mode),
            str(meta["fingerprint"]),
            dict(meta["sources"]),
            SpecialTokens.from_json(meta["special"]),
        )
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError("the frequency table cannot be read", got=error, source=path) from error
    whole = counts.dtype == np.int64 and counts.shape == (meta["vocab_size"],) and mode in get_args(CountMode)
    if not whole or bool((counts < 0).any()) or table.tokens != meta["tokens"]:
        raise ArtifactError(
            "the frequency table disagrees with its own manifest",
            got=f"{counts.dtype} {counts.shape}, {table.tokens:,} tokens, mode {mode}",
            expected=f"int64 ({meta['vocab_size']},), {meta['tokens']:,} tokens, mode corpus or assistant",
            source=path,
        )
    return table
