"""Where k-means starts: k-means++ on a sample of the rows, or rows drawn at random."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .kmeans_rows import Ids, Rows, UnitRows

# Rows of the sample per cluster: k-means++ reads its pool once for every centroid.
_POOL = 8
SAME = 1e-6  # 1 - cosine below which two unit rows in float32 are one direction

Step = Callable[[], None]


def start_centroids(
    rows: UnitRows, clusters: int, init: str, rng: np.random.Generator, step: Step = lambda: None
) -> Rows:
    """M rows as first centroids, (M, d) float32.

    Args:
        rows: the unit rows, at least M.
        clusters: M.
        init: a name of ``INITS`` (``KMeansOptions`` refuses others).
        rng: the source of chance.
        step: called once for each centroid that is chosen.
    """
    return INITS[init](rows, clusters, rng, step)


def sampled(rows: UnitRows, clusters: int, rng: np.random.Generator, step: Step) -> Rows:
    """M different rows, all equally likely."""
    chosen = np.sort(rng.choice(len(rows), size=clusters, replace=False))
    for _ in range(clusters):
        step()
    return rows.pick(chosen)


def plus_plus(rows: UnitRows, clusters: int, rng: np.random.Generator, step: Step) -> Rows:
    """k-means++ (Arthur and Vassilvitskii 2007) on the sphere, over a pool of 8 M rows drawn at random.

    The next row is drawn with probability proportional to 1 - (its cosine to the nearest chosen row), half
    its squared distance.
    """
    size = min(len(rows), _POOL * clusters)
    pool = rows.pick(np.sort(rng.choice(len(rows), size=size, replace=False)))  # (P, d)
    chosen: list[int] = []
    distance = np.ones(size, dtype=np.float64)
    for _ in range(clusters):
        at = _draw(distance, chosen, rng)
        chosen.append(at)
        # einsum runs on one thread: a threaded product may round otherwise, and the draws would differ.
        gap = 1.0 - np.einsum("nd,d->n", pool, pool[at]).astype(np.float64)
        gap[gap < SAME] = 0.0
        np.minimum(distance, gap, out=distance)
        distance[at] = 0.0
        step()
    return pool[chosen]


INITS: dict[str, Callable[[UnitRows, int, np.random.Generator, Step], Rows]] = {
    "kmeans++": plus_plus,
    "sample": sampled,
}


def _draw(weights: np.ndarray, chosen: list[int], rng: np.random.Generator) -> int:
    """An index with probability proportional to its weight; where all are 0, any that is not chosen yet."""
    bounds = np.cumsum(weights)
    if bounds[-1] <= 0.0:
        free: Ids = np.setdiff1d(np.arange(len(weights)), chosen)
        return int(rng.choice(free))
    at = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))
    return min(at, int(np.flatnonzero(weights)[-1]))
