"""Giving clusters that lost all their rows a row again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .kmeans_rows import Ids, Rows, UnitRows
from .kmeans_start import SAME

if TYPE_CHECKING:
    from .kmeans import Sweep

_SPARE = 64


def refill(rows: UnitRows, centroids: Rows, sweep: Sweep) -> int:
    """Move into each empty cluster the row farthest from its own centroid; the number of rows moved.

    A cluster's last row is never taken, and while others are left, no two clusters get the same direction
    (rows of unused tokens are often equal). A move never lowers the objective: |S - x| + 1 >= |S|.

    Args:
        rows: the unit rows.
        centroids: (M, d) that the sweep measured with.
        sweep: changed in place; afterwards no cluster is empty, if there are at least M rows.
    """
    dead = np.flatnonzero(sweep.sizes == 0)
    if not len(dead):
        return 0
    waiting = iter(dead.tolist())
    goal = next(waiting, None)
    for position, row in _candidates(rows, centroids, sweep, len(dead)):
        if goal is None:
            break
        former = int(sweep.labels[position])
        if sweep.sizes[former] < 2:
            continue
        sweep.sums[former] -= row
        sweep.sums[goal] = row
        sweep.sizes[former] -= 1
        sweep.sizes[goal] = 1
        sweep.labels[position], sweep.scores[position] = goal, 1.0
        goal = next(waiting, None)
    return len(dead)


def _candidates(rows: UnitRows, centroids: Rows, sweep: Sweep, wanted: int) -> Iterator[tuple[int, Rows]]:
    """Rows as (position, unit row), the farthest first; different directions first, then any."""
    farthest: Ids = np.lexsort((np.arange(len(rows)), sweep.scores))
    pool = np.sort(farthest[: 4 * wanted + _SPARE])
    vectors = rows.pick(pool)
    # float32 scores differ in the last bits between backends; the order must not.
    own = np.einsum("nd,nd->n", vectors, centroids[sweep.labels[pool]], dtype=np.float64)
    given = np.empty((0, rows.width), dtype=np.float32)
    taken: set[int] = set()
    for at in np.lexsort((pool, own)):
        if sweep.sizes[sweep.labels[pool[at]]] < 2 or (
            len(given) and float((given @ vectors[at]).max()) > 1.0 - SAME
        ):
            continue
        given = np.concatenate([given, vectors[at : at + 1]])
        taken.add(int(pool[at]))
        yield int(pool[at]), vectors[at]
    for position in farthest.tolist():
        if position not in taken:
            yield position, rows.pick(np.array([position]))[0]
