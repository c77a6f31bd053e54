"""Rows to cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vocabforge.vocab.clusters.rows import Ids, Rows, UnitRows, unit_rows


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """A matrix in memory as a source of rows."""

    array: Rows

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.array.shape
        return rows, width

    def rows(self, start: int, stop: int) -> Rows:
        return self.array[start:stop].astype(np.float32)

    def at(self, ids: Ids) -> Rows:
        return self.array[ids].astype(np.float32)


def groups(count=600, clusters=12, width=24, noise=0.4, seed=0):
    """Rows of different lengths around a few directions, and the direction of each."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((clusters, width))
    which = rng.integers(0, clusters, count)
    rows = centres[which] + noise * rng.standard_normal((count, width))
    return (rows * rng.uniform(0.1, 5.0, (count, 1))).astype(np.float32), which


def units(matrix) -> UnitRows:
    return unit_rows(ArrayRows(np.asarray(matrix, dtype=np.float32)), len(matrix), name="matrix")
