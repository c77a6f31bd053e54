"""From files to packed rows: what the loop draws its batches from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..capture.online import RowBatch
from ..core.errors import ConfigError, DataError
from ..core.files import atomic_write
from ..core.progress import ProgressBar, say
from ..corpus.dataset import PackedRows, SequenceOptions, TrainingSequence, iter_sequences, pack
from ..corpus.reading import Problems
from ..corpus.sources import SourceOptions
from ..corpus.tokenizer import TextTokenizer
from .config import DataConfig


@dataclass(frozen=True)
class TrainData:
    """Packed rows for training and for held-out figures, and the held-out documents themselves."""

    train: PackedRows
    heldout: PackedRows
    heldout_sequences: list[TrainingSequence]

    def digest(self) -> str:
        """SHA-256 over every packed array; equal digests mean equal batches."""
        digest = hashlib.sha256()
        for rows in (self.train, self.heldout):
            for array in (rows.input_ids, rows.loss_mask, rows.document):
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def prepare(config: DataConfig, tokenizer: TextTokenizer) -> TrainData:
    """Read, render, tokenise and pack the training and held-out documents.

    Raises:
        DataError: no document, no counted token, or too few documents to hold any out.
        ConfigError: a text unit that leaves one document.
    """
    sequences = _read(config, config.train, tokenizer)
    if config.heldout:
        heldout = _read(config, config.heldout, tokenizer)
    else:
        if len(sequences) <= config.heldout_documents:
            raise ConfigError(
                "there are too few documents to hold some out",
                got=f"{len(sequences)} documents in {', '.join(map(str, config.train))}",
                expected=f"more than data.heldout_documents = {config.heldout_documents}",
                remedy="set data.separator or data.text_unit, give data.heldout, or hold out fewer",
            )
        sequences, heldout = sequences[: -config.heldout_documents], sequences[-config.heldout_documents :]
    length = config.sequence_length
    return TrainData(pack(sequences, length, pad_id=0), pack(heldout, length, pad_id=0), heldout)


def _read(config: DataConfig, paths: Sequence[Path], tokenizer: TextTokenizer) -> list[TrainingSequence]:
    sources = SourceOptions(
        text_field=config.text_field,
        text_unit=config.text_unit,
        separator=config.separator,
        strict=config.strict,
    )
    problems = Problems(strict=config.strict)
    options = SequenceOptions(sources, append_eos=config.append_eos)
    size = sum(
        file.stat().st_size for path in paths for file in ([path] if path.is_file() else path.rglob("*"))
    )
    with ProgressBar("read and tokenize", size, "B") as bar:
        sequences = list(iter_sequences(tokenizer, paths, options, problems=problems, on_bytes=bar.update))
    if summary := problems.summary():
        say(summary)
    if not any(any(s.loss_mask) for s in sequences):
        raise DataError(
            "the training data has no token to learn from",
            got=f"{len(sequences):,} documents",
            expected="text, or conversations in which the assistant answers",
            source=", ".join(map(str, paths)),
        )
    return sequences


def batch_rows(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Row numbers of one step: a function of seed and step alone, so that a resumed run draws the same.

    Rows are walked in a fresh permutation each epoch; a batch may span two.
    """
    rows = []
    for index in range(step * batch_size, (step + 1) * batch_size):
        epoch, place = divmod(index, count)
        rows.append(int(_permutation(count, seed, epoch)[place]))
    return rows


_cache: dict[tuple[int, int, int], np.ndarray] = {}


def _permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    key = (count, seed, epoch)
    if key not in _cache:
        _cache.clear()
        _cache[key] = np.random.default_rng([seed, epoch]).permutation(count)
    return _cache[key]


def to_tensors(rows: PackedRows, indices: Sequence[int], device: torch.device) -> RowBatch:
    """The named rows as tensors (B, T)."""
    index = np.asarray(indices)
    arrays = (rows.input_ids, rows.loss_mask, rows.document, rows.position)
    return RowBatch(*(torch.from_numpy(array[index]).to(device) for array in arrays))


def write_heldout_prompts(path: Path, data: TrainData, tokenizer: TextTokenizer, config: DataConfig) -> int:
    """Held-out documents as questions in Spec-Bench format, so that ``vocabforge eval`` can use them.

    A plain text becomes a prompt of ``prompt_tokens`` tokens, its rest the reference; a conversation becomes
    its user turns.

    Returns:
        the number of questions.
    """
    import json

    lines: list[str] = []
    for sequence in data.heldout_sequences:
        if len(lines) == config.heldout_prompts:
            break
        document = sequence.document
        if document is None:
            continue
        if document.messages is not None:
            turns = [m["content"] for m in document.messages if m["role"] == "user"]
            references = [m["content"] for m in document.messages if m["role"] == "assistant"]
        else:
            turns, references = _cut_prompt(document.text or "", tokenizer, config.prompt_tokens)
        if not turns or not all(turns):
            continue
        row = {"question_id": 81 + len(lines), "category": "heldout", "turns": turns, "reference": references}
        lines.append(json.dumps(row, ensure_ascii=False))
    atomic_write(path, "".join(line + "\n" for line in lines))
    return len(lines)


def _cut_prompt(text: str, tokenizer: TextTokenizer, tokens: int) -> tuple[list[str], list[str]]:
    """Cut a text after ``tokens`` tokens, at the character where the next token starts."""
    ids, offsets = tokenizer.encode_with_offsets(text)
    if len(ids) <= 2 * tokens:
        return [], []
    end = offsets[tokens][0]
    return [text[:end]], [text[end:]]
