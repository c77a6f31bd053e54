"""Spherical k-means: unit rows in M clusters, so that the mean cosine to the own centroid is large.

Lloyd's iteration with normalised centroids (Dhillon and Modha 2001); rows are read block by block. torch
proposes the nearest centroids in float32; what float32 cannot decide, and every sum, is computed in float64
and in the order of the rows. So a result depends on rows, options and seed, not on device or threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...core.errors import UsageError
from ...core.progress import ProgressBar
from .rows import Ids, Rows, UnitRows

CLOSE = 1e-5  # products nearer to each other are compared again in float64
_TIE = 1e-12
_CHUNK = 256
_POOL = 8  # rows of the sample per cluster: k-means++ reads its pool once for every centroid
_SPARE = 64
SAME = 1e-6  # 1 - cosine below which two unit rows in float32 are one direction

Reals = npt.NDArray[np.float64]
# (n, d) unit rows -> the min(2, M) best centroids of each: ids and inner products, the better first.
Search = Callable[[Rows], tuple[Ids, Rows]]


@dataclass(frozen=True)
class KMeansOptions:
    """How to cluster: M, at most so many iterations, and the seed."""

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
        history: the objective, which is the mean cosine of all rows, after each iteration.
        refilled: clusters that had died and were given a row.
        converged: it stopped because nothing changed.
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
    """One pass over all rows: ``labels`` (n,), ``scores`` (n,) float32 cosines to the centroids it used,
    ``sums`` (M, d) float64 of unit rows and ``sizes`` (M,) of the clusters."""

    labels: Ids
    scores: Rows
    sums: Reals
    sizes: Ids


def torch_search(centroids: Rows) -> Search:
    """A search over centroids (M, d) by a product in float32, on the GPU if there is one."""
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
    """Assign every row to its nearest centroid, ties to the lower cluster, and add up the clusters."""
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
        for label, row in zip(best.tolist(), block, strict=True):  # quicker than numpy's grouped sums
            sweep.sums[label] += row
        on_rows(stop - start)
    sweep.sizes[:] = np.bincount(sweep.labels, minlength=clusters)
    return sweep


def _nearest_exactly(block: Rows, centroids: Reals) -> Ids:
    """Nearest of all centroids in float64; products that are equal but for rounding go to the lower cluster."""
    best = np.empty(len(block), dtype=np.int64)
    for start in range(0, len(block), _CHUNK):
        scores = block[start : start + _CHUNK].astype(np.float64) @ centroids.T  # (n, M)
        best[start : start + _CHUNK] = (scores >= scores.max(axis=1, keepdims=True) - _TIE).argmax(axis=1)
    return best


def _normalised(sums: Reals, former: Rows) -> tuple[Rows, Reals]:
    """Sums (M, d) as unit vectors, and their lengths (M,); a sum without a direction keeps its centroid.

    The sum over a cluster of cosines to its new centroid is the length of its sum.
    """
    lengths = np.sqrt(np.einsum("md,md->m", sums, sums))
    directed = lengths > 1e-9
    centroids = former.copy()
    centroids[directed] = sums[directed] / lengths[directed, None]
    return centroids, lengths


def plus_plus(
    rows: UnitRows, clusters: int, rng: np.random.Generator, step: Callable[[int], None] = lambda _: None
) -> Rows:
    """k-means++ (Arthur and Vassilvitskii 2007) on the sphere: (M, d) rows out of a pool of 8 M drawn at random.

    The next row is drawn with probability proportional to 1 - (its cosine to the nearest chosen row).
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
        step(1)
    return pool[chosen]


def _draw(weights: np.ndarray, chosen: list[int], rng: np.random.Generator) -> int:
    """An index with probability proportional to its weight; where all are 0, any that is not chosen yet."""
    bounds = np.cumsum(weights)
    if bounds[-1] <= 0.0:
        free: Ids = np.setdiff1d(np.arange(len(weights)), chosen)
        return int(rng.choice(free))
    at = int(np.searchsorted(bounds, rng.random() * bounds[-1], side="right"))
    return min(at, int(np.flatnonzero(weights)[-1]))


def refill(rows: UnitRows, centroids: Rows, sweep: Sweep) -> int:
    """Move into each empty cluster the row farthest from its own centroid; the number of rows moved.

    A cluster's last row is never taken, and while others are left, no two clusters get the same direction (rows of
    unused tokens are often equal). A move never lowers the objective: |S - x| + 1 >= |S|. ``sweep`` changes in place.
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
