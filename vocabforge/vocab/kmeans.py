"""Spherical k-means: unit rows in M clusters, so that the mean cosine to the own centroid is large.

Lloyd's iteration with normalised centroids (Dhillon and Modha 2001); rows are read block by block. The
backend proposes the nearest centroids in float32; what float32 cannot decide, and every sum, is computed in
float64 and in the order of the rows. So a result depends on rows, options and seed, and not on backend or
number of threads (as long as a backend's float32 products are right to 5e-6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..core.errors import UsageError
from ..core.progress import ProgressBar
from .kmeans_backends import Backend, Search
from .kmeans_repair import refill
from .kmeans_rows import Ids, Rows, UnitRows
from .kmeans_start import INITS, start_centroids

CLOSE = 1e-5  # products nearer to each other are compared again in float64
_TIE = 1e-12
_CHUNK = 256

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KMeansOptions:
    """How to cluster.

    Attributes:
        clusters: M.
        iterations: at most so many; fewer where nothing changes any more.
        restarts: runs from different starts; the one with the best objective is kept.
        seed: of the first run; run i uses (seed, i).
        init: ``kmeans++`` or ``sample``.
    """

    clusters: int
    iterations: int = 25
    restarts: int = 1
    seed: int = 0
    init: str = "kmeans++"

    def __post_init__(self) -> None:
        for name, least in (("clusters", 1), ("iterations", 1), ("restarts", 1), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"{name} is too small", got=value, expected=f"at least {least}")
        if self.init not in INITS:
            raise UsageError("there is no such start", got=f"--init {self.init}", expected=", ".join(INITS))


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """The best run.

    Attributes:
        assignment: (n,) int64 cluster of each unit row; no cluster is empty.
        centroids: (M, d) float32, the normalised sum of each cluster's unit rows.
        cosine: (M,) float64 mean cosine of each cluster's rows to its centroid.
        history: the objective, which is the mean cosine of all rows, after each iteration.
        refilled: clusters that had died and were given a row, over all iterations.
        objectives: the last objective of every run.
        run: which run this is.
        converged: it stopped because nothing changed.
    """

    assignment: Ids
    centroids: Rows
    cosine: Reals
    history: tuple[float, ...]
    refilled: int
    objectives: tuple[float, ...]
    run: int
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


def spherical_kmeans(rows: UnitRows, options: KMeansOptions, backend: Backend) -> KMeansResult:
    """Cluster unit rows; a progress bar shows iterations and objective.

    Raises:
        UsageError: fewer rows than clusters.
    """
    if len(rows) < options.clusters:
        raise UsageError(
            "there are fewer rows than clusters", got=f"{len(rows):,} rows", expected=f"{options.clusters:,}"
        )
    kept: KMeansResult | None = None
    objectives: list[float] = []
    for run in range(options.restarts):
        result = _run(rows, options, run, backend)
        objectives.append(result.objective)
        if kept is None or result.objective > kept.objective:
            kept = result
    assert kept is not None
    return replace(kept, objectives=tuple(objectives))


def _run(rows: UnitRows, options: KMeansOptions, run: int, backend: Backend) -> KMeansResult:
    rng = np.random.default_rng([options.seed, run])
    label = f" {run + 1}/{options.restarts}" if options.restarts > 1 else ""
    with ProgressBar(f"start{label} ({options.init})", options.clusters, "centroids") as bar:
        start = start_centroids(rows, options.clusters, options.init, rng, lambda: bar.update(1))
    with ProgressBar(f"k-means{label}", options.iterations * len(rows), "rows") as bar:
        return replace(_iterate(rows, start, options.iterations, backend, bar), run=run)


def _iterate(
    rows: UnitRows, centroids: Rows, iterations: int, backend: Backend, bar: ProgressBar
) -> KMeansResult:
    """Assign and average until nothing changes, from the given centroids."""
    history: list[float] = []
    labels: Ids | None = None
    refilled, converged, note = 0, False, ""
    cosine = np.zeros(len(centroids))
    while len(history) < iterations and not converged:
        bar.update(note=f"iteration {len(history) + 1}/{iterations}{note}")
        sweep = sweep_rows(rows, centroids, backend.search(centroids), bar.update)
        refilled += refill(rows, centroids, sweep)
        converged = labels is not None and bool(np.array_equal(labels, sweep.labels))
        labels = sweep.labels
        centroids, lengths = _normalised(sweep.sums, centroids)
        cosine = lengths / sweep.sizes
        history.append(float(lengths.sum() / len(rows)))
        note = f", mean cosine {history[-1]:.4f}"
    bar.update((iterations - len(history)) * len(rows))
    assert labels is not None
    return KMeansResult(labels, centroids, cosine, tuple(history), refilled, (), 0, converged)


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
