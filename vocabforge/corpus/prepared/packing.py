"""Pack a stream of sequences into rows of fixed length, with document boundaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...core.errors import UsageError
from ..sources.document import Document

Overlong = Literal["cut", "split", "skip"]
OPEN_ROWS = 128
_OPEN_TOKENS = 4 << 20


@dataclass(frozen=True)
class TrainingSequence:
    """One document: ``ids`` and ``loss_mask`` of equal length (l_t: 1 for tokens of assistant or author)."""

    ids: list[int]
    loss_mask: list[int]
    document: Document | None = None


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Sequences packed into N rows of T tokens; the arrays may be memory-mapped files.

    Attributes:
        input_ids: (N, T) integers, ``pad_id`` on padding.
        loss_mask: (N, T) bool, False on padding.
        document: (N, T) integers, 1, 2, ... for the row's documents, 0 on padding.
        position: (N, T) integers, restarts at 0 with each document, 0 on padding.
        tokens: number of places with a token.
    """

    input_ids: npt.NDArray[np.integer]
    loss_mask: npt.NDArray[np.bool_]
    document: npt.NDArray[np.integer]
    position: npt.NDArray[np.integer]
    tokens: int

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def length(self) -> int:
        """T, tokens per row."""
        return int(self.input_ids.shape[1])

    @property
    def fill(self) -> float:
        """Share of the places with a token."""
        return self.tokens / self.input_ids.size


class StreamPacker:
    """First-fit packer of a stream with a bounded number of open rows.

    A sequence is placed whole in the first open row with room. If none has room and no more rows may be
    opened, the fullest (on ties, the oldest) is closed: ``write`` gets its input_ids, loss_mask, document,
    position, (T,) each, valid only until the next call. The result depends only on the sequences in order.
    """

    def __init__(
        self, length: int, write: Callable[..., Any], *, pad_id: int = 0, open_rows: int | None = None
    ) -> None:
        if length < 1:
            raise UsageError("rows need at least one token", got=length, expected="1 or more")
        number = open_rows or max(8, min(OPEN_ROWS, _OPEN_TOKENS // length))
        self._length, self._write, self._pad = length, write, pad_id
        self._ids = np.full((number, length), pad_id, dtype=np.int32)  # (R, T)
        self._mask = np.zeros((number, length), dtype=np.bool_)
        self._document = np.zeros((number, length), dtype=np.int32)
        self._position = np.zeros((number, length), dtype=np.int32)
        self._used = np.zeros(number, dtype=np.int64)
        self._numbers = [0] * number
        self._open: list[int] = []  # slots in the order in which they were opened
        self._free = list(range(number))
        self.rows = self.tokens = self.counted = 0

    def add(self, ids: Sequence[int], mask: Sequence[int]) -> None:
        """Pack one sequence of 1 to T tokens."""
        size = len(ids)
        slot = self._slot(size)
        at = int(self._used[slot])
        place = slice(at, at + size)
        self._numbers[slot] += 1
        self._ids[slot, place] = ids
        self._mask[slot, place] = np.asarray(mask, dtype=np.bool_)
        self._document[slot, place] = self._numbers[slot]
        self._position[slot, place] = np.arange(size)
        self._used[slot] += size
        self.tokens += size
        self.counted += int(np.count_nonzero(self._mask[slot, place]))
        if self._used[slot] == self._length:
            self._close(slot)

    def finish(self) -> None:
        """Write the rows that are still open, oldest first."""
        for slot in list(self._open):
            self._close(slot)

    def _slot(self, size: int) -> int:
        room = self._length - self._used[self._open]
        fits = np.flatnonzero(room >= size)
        if len(fits):
            return self._open[int(fits[0])]
        if not self._free:
            self._close(self._open[int(np.argmin(room))])
        self._open.append(self._free.pop())
        return self._open[-1]

    def _close(self, slot: int) -> None:
        self._write(self._ids[slot], self._mask[slot], self._document[slot], self._position[slot])
        self.rows += 1
        self._open.remove(slot)
        self._free.append(slot)
        self._ids[slot] = self._pad
        for array in (self._mask, self._document, self._position):
            array[slot] = 0
        self._used[slot] = self._numbers[slot] = 0


@dataclass
class OverlongTally:
    """Counts of sequences that are longer than a row.

    Attributes:
        sequences: number of these sequences.
        pieces: pieces kept by ``split``.
        lost_tokens: dropped tokens.
        lost_counted: dropped tokens with loss mask 1.
        unlearnt: parts dropped because they have no token with loss mask 1.
    """

    sequences: int = 0
    pieces: int = 0
    lost_tokens: int = 0
    lost_counted: int = 0
    unlearnt: int = 0

    def fit(
        self, ids: Sequence[int], mask: Sequence[int], length: int, overlong: Overlong
    ) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Split a sequence into parts of at most ``length`` tokens, each a separate document.

        ``cut`` keeps the beginning, ``skip`` nothing, ``split`` every part with a learnt token.
        """
        if len(ids) <= length:
            return [(ids, mask)]
        self.sequences += 1
        starts = {"cut": range(1), "skip": range(0), "split": range(0, len(ids), length)}[overlong]
        parts = [(ids[at : at + length], mask[at : at + length]) for at in starts]
        kept = [part for part in parts if any(part[1])]
        self.unlearnt += len(parts) - len(kept)
        self.pieces += len(kept) if overlong == "split" else 0
        self.lost_tokens += len(ids) - sum(len(part[0]) for part in kept)
        self.lost_counted += sum(mask) - sum(sum(part[1]) for part in kept)
        return kept
