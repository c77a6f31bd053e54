"""Spherical k-means by faiss: unit rows in M clusters with a large mean cosine to their centroid."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError, UsageError
from ...core.progress import ProgressBar

_SETTLED = 1e-7  # relative gain of the objective below which iteration stops
_NO_DIRECTION = 1e-30  # norm below which a row has no direction in float32

Rows = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


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


@dataclass(frozen=True)
class KMeansOptions:
    """Options of clustering: M, the maximum number of iterations, and the seed."""

    clusters: int
    iterations: int = 25
    seed: int = 0


@dataclass(frozen=True, eq=False)
class KMeansResult:
    """Clusters, and how they were found.

    Attributes:
        assignment: (n,) int64 cluster of each unit row; no cluster is empty.
        centroids: (M, d) float32, the normalised sum of each cluster's unit rows.
        cosine: (M,) float64 mean cosine of each cluster's rows to its centroid.
        history: the mean cosine of all rows to their nearest centroid, at the start of each iteration and at
            the end.
        refilled: number of times that an empty cluster was filled, over all iterations.
        converged: whether iteration stopped because the objective gained less than 1e-7 of itself.
    """

    assignment: Ids
    centroids: Rows
    cosine: Reals
    history: tuple[float, ...]
    refilled: int
    converged: bool


def _import_faiss() -> Any:
    # Which of them the module is depends on the order in which they were installed.
    names = {package.metadata["Name"] or "" for package in distributions()}
    providers = sorted(name for name in names if name.startswith("faiss-"))
    if len(providers) > 1:
        raise UsageError(
            "several packages provide the module faiss",
            got=", ".join(providers),
            expected="one of them",
            remedy=f"pip uninstall {' '.join(providers)}, then install the one that you want",
        )
    try:
        import faiss
    except ImportError as error:
        raise UsageError(
            "clustering needs faiss", got=str(error), remedy="pip install faiss-cpu, or a faiss-gpu package"
        ) from error
    return faiss


def spherical_kmeans(rows: UnitRows, options: KMeansOptions) -> KMeansResult:
    """Cluster unit rows by faiss, on a GPU if faiss finds one; a progress bar shows iterations and objective.

    Raises:
        UsageError: fewer rows than clusters, or faiss is not installed.
    """
    if len(rows) < options.clusters:
        raise UsageError(
            "there are fewer rows than clusters", got=f"{len(rows):,} rows", expected=f"{options.clusters:,}"
        )
    faiss, units = _import_faiss(), rows.units
    with warnings.catch_warnings():  # faiss's Python code uses numpy in a way that it deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        kmeans = faiss.Kmeans(
            units.shape[1],
            options.clusters,
            niter=1,
            seed=options.seed,
            spherical=True,
            min_points_per_centroid=1,
            max_points_per_centroid=len(rows),  # otherwise faiss uses a sample
            init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
            gpu=faiss.get_num_gpus() > 0,
        )
        history: list[float] = []
        split, converged = 0, False
        with ProgressBar("k-means", options.iterations, "iterations") as bar:
            while len(history) < options.iterations and not converged:
                kmeans.train(units, init_centroids=kmeans.centroids)
                history.append(float(kmeans.obj[-1]) / len(rows))
                split += kmeans.iteration_stats[-1]["nsplit"]
                converged = len(history) > 1 and history[-1] - history[-2] <= _SETTLED * history[-1]
                bar.update(1, note=f"mean cosine {history[-1]:.4f}")
            bar.update(options.iterations - len(history))
        scores, ids = kmeans.assign(units)
    labels, scores = ids.astype(np.int64), scores.astype(np.float64)
    moved = _refill(labels, scores, options.clusters)
    sums = np.zeros((options.clusters, units.shape[1]))
    np.add.at(sums, labels, units)
    lengths = np.linalg.norm(sums, axis=1)
    directed = lengths > 1e-9  # opposite rows may cancel
    centroids = kmeans.centroids.astype(np.float32)
    centroids[directed] = sums[directed] / lengths[directed, None]
    cosine = lengths / np.bincount(labels, minlength=options.clusters)
    history.append(float(lengths.sum()) / len(rows))
    return KMeansResult(labels, centroids, cosine, tuple(history), split + moved, converged)


def _refill(labels: Ids, scores: Reals, clusters: int) -> int:
    """Move the row farthest from its centroid into each empty cluster, in place; return how many.

    Rows of unused tokens are often equal: then fewer directions than clusters remain. The last row of a
    cluster is never taken.
    """
    sizes = np.bincount(labels, minlength=clusters)
    empty = np.flatnonzero(sizes == 0)
    farthest = iter(np.argsort(scores, kind="stable").tolist()) if len(empty) else iter(())
    for goal in empty.tolist():
        row = next(row for row in farthest if sizes[labels[row]] > 1)
        sizes[labels[row]] -= 1
        labels[row], sizes[goal] = goal, 1
    return len(empty)
