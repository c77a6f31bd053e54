"""Rows to cluster: the unit vectors of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_NO_DIRECTION = 1e-30  # norm below which a row has no direction in float32


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Unit vectors x_i / |x_i| of the rows that have a direction.

    Attributes:
        units: (n, d) float32.
        ids: (n,) indices of these rows in the matrix, ascending.
        zero_ids: rows without a direction (norm 0), excluded.
    """

    units: Rows
    ids: Ids
    zero_ids: Ids

    def __len__(self) -> int:
        return len(self.ids)


def unit_rows(matrix: Rows, *, name: object) -> UnitRows:
    """Normalise the rows of a matrix (V, d), in place.

    Raises:
        DataError: a row holds NaN or infinity, or no row has a direction.
    """
    # In float64, because a square can exceed the range of float32.
    with np.errstate(all="ignore"):  # non-finite values are reported below
        norms = np.sqrt(np.einsum("nd,nd->n", matrix, matrix, dtype=np.float64))
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
            got=f"{len(matrix):,} rows of norm 0",
            expected="a trained head",
            source=name,
        )
    ids = np.flatnonzero(kept)
    units = matrix if kept.all() else matrix[ids]
    units *= (1.0 / norms[ids]).astype(np.float32)[:, None]
    return UnitRows(units, ids, np.flatnonzero(~kept))
