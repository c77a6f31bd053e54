"""Packed rows of a small target: made in memory, or once on the disk; batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..core.progress import say
from ..corpus.dataset import PackedRows, SequenceOptions, iter_sequences, pack
from ..corpus.prepared import prepare_in
from ..corpus.prepared_key import HeldoutOptions, PrepareOptions
from ..corpus.reading import Problems
from ..corpus.sources import SourceOptions
from ..corpus.tokenizer import TextTokenizer
from .config import OptimConfig
from .data import to_tensors

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Some packed rows.

    Attributes:
        input_ids, document, position: (B, T).
        keep: bool (B, T - 1), which of the predictions of the next token count.
    """

    input_ids: Tensor
    document: Tensor
    position: Tensor
    keep: Tensor

    @property
    def labels(self) -> Tensor:
        """(n,) the counted next tokens."""
        return self.input_ids[:, 1:][self.keep]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        parts = (self.input_ids, self.document, self.position, self.keep)
        return self if device == _CPU else Batch(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class Rows:
    """Packed rows, maybe memory-mapped, and which of their tokens are learnt."""

    packed: PackedRows
    loss_on: str

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def length(self) -> int:
        """T."""
        return self.packed.length

    @property
    def tokens(self) -> int:
        """Places that hold a token."""
        return int((self.packed.document > 0).sum())

    def batch(self, chosen: Tensor) -> Batch:
        """The rows of these numbers, on the CPU."""
        read = to_tensors(self.packed, chosen.tolist(), _CPU)
        document = read.document
        counted = read.loss_mask if self.loss_on == "assistant" else document > 0
        follows = document[:, 1:] == document[:, :-1]
        keep = counted[:, 1:] & follows & (document[:, 1:] > 0)
        return Batch(read.input_ids, document, read.position, keep)


def packed_rows(
    tokenizer: TextTokenizer, path: Path, length: int, pad_id: int, *, strict: bool
) -> PackedRows:
    """All conversations of a file, the longest first; longer ones than a row are cut.

    Args:
        strict: an unusable conversation is an error; else it is left out, and that is said.

    Raises:
        DataError: no conversation, or see ``strict``.
    """
    problems, options = Problems(strict=strict), SequenceOptions(sources=SourceOptions(strict=strict))
    packed = pack(iter_sequences(tokenizer, [path], options, problems=problems), length, pad_id=pad_id)
    if summary := problems.summary():
        say(summary)
    return packed


def prepared_rows(
    folder: Path, tokenizer: TextTokenizer, train: Path, heldout: Sequence[Path], length: int
) -> PackedRows:
    """Training rows that are made once, kept in ``folder`` and memory-mapped; a conversation longer than a row becomes
    several, an unusable one is left out and counted.

    Raises:
        DataError: no conversation; held-out files that hold none are named here, too, before training.
    """
    options = PrepareOptions(length, overlong="split", heldout=HeldoutOptions(prompts=0))
    # With no file of that kind, the last documents of the training file would be set aside.
    return prepare_in(folder, tokenizer, [train], list(heldout) or [train], options).train


def batches(count: int, config: OptimConfig, seed: int) -> Iterator[Tensor]:
    """Row numbers of each step's batch: epoch after epoch, each shuffled."""
    generator = torch.Generator().manual_seed(seed)
    waiting = torch.empty(0, dtype=torch.int64)
    for _ in range(config.steps):
        while len(waiting) < config.batch_size:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator)])
        yield waiting[: config.batch_size]
        waiting = waiting[config.batch_size :]


def spread(count: int, most: int | None) -> Tensor:
    """Row numbers: all of ``count``, or ``most`` of them, evenly spread."""
    if most is None or most >= count:
        return torch.arange(count)
    return torch.arange(most) * count // most
