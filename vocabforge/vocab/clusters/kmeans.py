"""Spherical k-means: unit rows in M clusters with a large mean cosine to their centroid.

Lloyd's iteration with normalised centroids (Dhillon and Modha 2001); rows are read block by block. torch
proposes the nearest centroids in float32; close candidates and all sums are computed in float64, in row
order. The result therefore depends only on rows, options and seed, not on device or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...core.errors import UsageError
from ...core.progress import ProgressBar
from .rows import Ids, Rows, UnitRows

CLOSE = 1e-5  # products with a smaller difference are compared again in float64
_TIE = 1e-12
_CHUNK = 256
_POOL = 8  # sampled rows per cluster; k-means++ reads its pool once per centroid
_SPARE = 64
SAME = 1e-6  # 1 - cosine below which two float32 unit rows have the same direction

Reals = npt.NDArray[np.float64]
# (n, d) unit rows -> ids and inner products of the min(2, M) best centroids of each, best first.
Search = Callable[[Rows], tuple[Ids, Rows]]


@dataclass(frozen=True)
class KMeansOptions:
    """Options of clustering: M, the maximum number of iterations, and the seed."""

    clusters: int
    iterations: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("clusters", 1), ("iterations", 1), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name} is too small", got=value, expected=f"at least {least}")


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """Clusters, and how they were found.

    Attributes:
        assignment: (n,) int64 cluster of each unit row; no cluster is empty.
        centroids: (M, d) float32, the normalised sum of each cluster's unit rows.
        cosine: (M,) float64 mean cosine of each cluster's rows to its centroid.
        history: the objective (mean cosine of all rows) after each iteration.
        refilled: number of empty clusters that were given a row.
        converged: whether iteration stopped because nothing changed.
    """

    assignment: Ids
    centroids: Rows
    cosine: Reals
    history: tuple[float, ...]
    refilled: int
    converged: bool

    @property
    def objective(self) -> float:
        """Mean cosine of all rows at the end."""
        return self.history[-1]


@dataclass(eq=False)
class Sweep:
    """Result of one pass over all rows.

    Attributes:
        labels: (n,) cluster of each row.
        scores: (n,) float32 cosines to the centroids of the pass.
        sums: (M, d) float64 sums of unit rows.
        sizes: (M,) sizes of the clusters.
    """

    labels: Ids
    scores: Rows
    sums: Reals
    sizes: Ids


def torch_search(centroids: Rows) -> Search:
    """Return a search over centroids (M, d) by float32 products, on the GPU if available."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    columns = torch.from_numpy(centroids).to(device).T  # (d, M)
    nearest = min(2, len(centroids))

    def search(rows: Rows) -> tuple[Ids, Rows]:
        scores, ids = torch.topk(torch.from_numpy(rows).to(device) @ columns, nearest)
        return ids.cpu().numpy(), scores.cpu().numpy()

    return search


def spherical_kmeans(
    rows: UnitRows, options: KMeansOptions, search: Callable[[Rows], Search] = torch_search
) -> KMeansResult:
    """Cluster unit rows; a progress bar shows iterations and objective.

    Raises:
        UsageError: fewer rows than clusters.
    """
    if len(rows) < options.clusters:
        raise UsageError(
            "there are fewer rows than clusters", got=f"{len(rows):,} rows", expected=f"{options.clusters:,}"
        )
    with ProgressBar("start (kmeans++)", options.clusters, "centroids") as bar:
        start = plus_plus(rows, options.clusters, np.random.default_rng([options.seed, 0]), bar.update)
    with ProgressBar("k-means", options.iterations * len(rows), "rows") as bar:
        return _iterate(rows, start, options.iterations, search, bar)


def _iterate(
    rows: UnitRows, centroids: Rows, iterations: int, search: Callable[[Rows], Search], bar: ProgressBar
) -> KMeansResult:
    history: list[float] = []
    labels: Ids | None = None
    refilled, converged, note = 0, False, ""
    cosine = np.zeros(len(centroids))
    while len(history) < iterations and not converged:
        bar.update(note=f"iteration {len(history) + 1}/{iterations}{note}")
        sweep = sweep_rows(rows, centroids, search(centroids), bar.update)
        refilled += refill(rows, centroids, sweep)
        converged = labels is not None and bool(np.array_equal(labels, sweep.labels))
        labels = sweep.labels
        centroids, lengths = _normalised(sweep.sums, centroids)
        cosine = lengths / sweep.sizes
        history.append(float(lengths.sum() / len(rows)))
        note = f", mean cosine {history[-1]:.4f}"
    bar.update((iterations - len(history)) * len(rows))
    assert labels is not None
    return KMeansResult(labels, centroids, cosine, tuple(history), refilled, converged)


def sweep_rows(
    rows: UnitRows, centroids: Rows, search: Search, on_rows: Callable[[int], None] = lambda _: None
) -> Sweep:
    """Assign every row to its nearest centroid, ties to the lower cluster, and sum up the clusters."""
    count, (clusters, width) = len(rows), centroids.shape
    sweep = Sweep(
        np.empty(count, dtype=np.int64),
        np.empty(count, dtype=np.float32),
        np.zeros((clusters, width), dtype=np.float64),
        np.zeros(clusters, dtype=np.int64),
    )
    exact = centroids.astype(np.float64)  # (M, d)
    for start, stop in rows.spans():
        block = rows.block(start, stop)  # (n, d)
        ids, scores = search(block)  # (n, 2)
        best = ids[:, 0].astype(np.int64)
        if ids.shape[1] > 1:
            close = np.flatnonzero(scores[:, 0] - scores[:, 1] <= CLOSE)
            best[close] = _nearest_exactly(block[close], exact)
        sweep.labels[start:stop] = best
        sweep.scores[start:stop] = scores[:, 0]
        for label, row in zip(best.tolist(), block, strict=True):  # faster than numpy's grouped sums
            sweep.sums[label] += row
        on_rows(stop - start)
    sweep.sizes[:] = np.bincount(sweep.labels, minlength=clusters)
    return sweep


def _nearest_exactly(block: Rows, centroids: Reals) -> Ids:
    """Return the nearest centroids in float64; products equal up to rounding go to the lower cluster."""
    best = np.empty(len(block), dtype=np.int64)
    for start in range(0, len(block), _CHUNK):
        scores = block[start : start + _CHUNK].astype(np.float64) @ centroids.T  # (n, M)
        best[start : start + _CHUNK] = (scores >= scores.max(axis=1, keepdims=True) - _TIE).argmax(axis=1)
    return best


def _normalised(sums: Reals, former: Rows) -> tuple[Rows, Reals]:
    """Return sums (M, d) as unit vectors, and their lengths (M,); a zero sum keeps its former centroid.

    The length of a cluster's sum equals the sum of its rows' cosines to the new centroid.
    """
    lengths = np.sqrt(np.einsum("md,md->m", sums, sums))
    directed = lengths > 1e-9
    centroids = former.copy()
    centroids[directed] = sums[directed] / lengths[directed, None]
    return centroids, lengths


def plus_plus(
    rows: UnitRows, clusters: int, rng: np.random.Generator, step: Callable[[int], None] = lambda _: None
) -> Rows:
    """Draw (M, d) rows by spherical k-means++ (Arthur and Vassilvitskii 2007) from a random pool of 8 M rows.

    The next row is drawn with probability proportional to 1 - (its cosine to the nearest chosen row).
    """
    size = min(len(rows), _POOL * clusters)
    pool = rows.pick(np.sort(rng.choice(len(rows), size=size, replace=False)))  # (P, d)
    chosen: list[int] = []
    distance = np.ones(size, dtype=np.float64)
    for _ in range(clusters):
        at = _draw(distance, chosen, rng)
        chosen.append(at)
        # einsum is single-threaded; a threaded product may round differently and change the draws.
        gap = 1.0 - np.einsum("nd,d->n", pool, pool[at]).astype(np.float64)
        gap[gap < SAME] = 0.0
        np.minimum(distance, gap, out=distance)
        distance[at] = 0.0
        step(1)
    return pool[chosen]


def _draw(weights: np.ndarray, chosen: list[int], rng: np.random.Generator) -> int:
    """Draw an index with probability proportional to its weight; if all are 0, any that is not chosen yet."""
    bounds = np.cumsum(weights)
    if bounds[-1] <= 0.0:
        free: Ids = np.setdiff1d(np.arange(len(weights)), chosen)
        return int(rng.choice(free))
    at = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))
    return min(at, int(np.flatnonzero(weights)[-1]))


def refill(rows: UnitRows, centroids: Rows, sweep: Sweep) -> int:
    """Move the row farthest from its centroid into each empty cluster; return the number of rows moved.

    A cluster's last row is never taken. No two clusters get the same direction unless no others are left
    (rows of unused tokens are often equal). A move never lowers the objective: |S - x| + 1 >= |S|. ``sweep``
    is changed in place.
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
    """Yield rows as (position, unit row), farthest first; distinct directions first, then any."""
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
