"""Rows to cluster: unit vectors of a matrix that may be on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_BLOCK_BYTES = 64 << 20
_BLOCK_ROWS = 4096
_NO_DIRECTION = 1e-30  # norm below which a row has no direction in float32


class RowSource(Protocol):
    """Matrix that is read in parts, such as an LM head on disk."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, d)."""

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows [start, stop) in float32, (stop - start, d)."""

    def at(self, ids: Ids) -> Rows:
        """Return the rows with these indices, (len(ids), d)."""


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Unit vectors x_i / |x_i| of the rows that have a direction.

    Attributes:
        ids: (n,) indices of the kept rows of the source, ascending.
        scale: (n,) float32, 1 / |x_i|.
        zero_ids: rows without a direction (norm 0), excluded.
        count: number of leading rows of the source that were read.
    """

    source: RowSource
    ids: Ids
    scale: Rows
    zero_ids: Ids
    count: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        """d."""
        return self.source.shape[1]

    def read(self) -> Rows:
        """Return all unit rows, (n, d)."""
        rows = self.source.at(self.ids) if len(self.zero_ids) else self.source.rows(0, self.count)
        rows *= self.scale[:, None]
        return rows


def unit_rows(source: RowSource, count: int, *, name: object, digest: Any = None) -> UnitRows:
    """Normalise the first ``count`` rows of a matrix; later rows (padding) are never read.

    ``digest``, a hashlib object, is updated with every row in float32.

    Raises:
        DataError: a row holds NaN or infinity, or no row has a direction.
    """
    state: Any = hashlib.sha256() if digest is None else digest
    norms = np.empty(count, dtype=np.float64)
    for start, stop in _spans(count, source.shape[1]):
        block = np.ascontiguousarray(source.rows(start, stop))
        state.update(block.reshape(-1).view(np.uint8))
        # In float64, because a square can exceed the range of float32.
        with np.errstate(all="ignore"):  # non-finite values are reported below
            norms[start:stop] = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise DataError(
            "a row of the LM head holds NaN or infinity",
            got=f"row {bad[0]}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else ""),
            expected="finite numbers",
            source=name,
            remedy="the checkpoint is damaged: fetch or make it again",
        )
    kept = norms >= _NO_DIRECTION
    if not kept.any():
        raise DataError(
            "every row of the LM head is zero",
            got=f"{count:,} rows of norm 0",
            expected="a trained head",
            source=name,
        )
    ids = np.flatnonzero(kept)
    scale = (1.0 / norms[ids]).astype(np.float32)
    return UnitRows(source, ids, scale, np.flatnonzero(~kept), count)


def _spans(count: int, width: int) -> Iterator[tuple[int, int]]:
    size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // (4 * width)))
    for start in range(0, count, size):
        yield start, min(start + size, count)
