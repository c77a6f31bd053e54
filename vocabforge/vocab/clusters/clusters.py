"""Vocabulary clusters (DynaSpec): the artefact, its canonical order, and the clustering of an LM head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from ...core.artifact import open_artifact, write_artifact
from ...core.errors import MismatchError, UsageError
from ...core.files import form_errors
from .kmeans import Ids, KMeansOptions, Rows, UnitRows, spherical_kmeans

KIND = "clusters"
_FILE = "clusters.safetensors"
_FORMS = {
    "permutation": np.int64,
    "offsets": np.int64,
    "assignment": np.int32,
    "centroids": np.float32,
    "cosine": np.float32,
}
_QUANTILES = {"min": 0.0, "median": 0.5, "max": 1.0}
_SAMPLE = 4096  # a silhouette takes the square of the rows
_LARGE, _LARGE_CLUSTERS, _ROWS_A_CLUSTER = 100_000, 1024, 128


@dataclass(frozen=True, eq=False)
class Clusters:
    """The V token ids of a tokenizer in M non-empty clusters.

    The order is canonical, so equal clusters give equal arrays: clusters are sorted by their lowest id, ids
    within a cluster ascend. ``head[permutation]`` stores every cluster as a contiguous slab. Padded rows of
    the head are in no cluster. Zero rows share one cluster (``zero_cluster``) with centroid 0.

    Attributes:
        permutation: (V,) int64 target ids; cluster m owns ``permutation[offsets[m]:offsets[m + 1]]``.
        offsets: (M + 1,) int64.
        assignment: (V,) int32 cluster of each id.
        centroids: (M, d) float32 unit vectors.
        cosine: (M,) float32 mean cosine of a cluster's rows to its centroid (zero cluster: 0).
        head: the clustered rows: ``digest``, ``rows``, ``padded``, ``width`` (d), ``dtype``, ``name``,
            ``tied``.
        origin: record of the clustering: options, ``objective``, ``history`` and so on.
    """

    permutation: Ids
    offsets: Ids
    assignment: npt.NDArray[np.int32]
    centroids: Rows
    cosine: Rows
    zero_cluster: int | None
    fingerprint: str
    head: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def vocab_size(self) -> int:
        return len(self.permutation)

    @property
    def sizes(self) -> Ids:
        """(M,) number of ids in each cluster."""
        return np.diff(self.offsets)

    def check_head(self, digest: str, source: object) -> None:
        """Check that the clusters were made from this target's LM head.

        Raises:
            MismatchError: ``digest``, of the first V rows of the head, differs.
        """
        if digest != self.head["digest"]:
            raise MismatchError(
                "the clusters were made from another LM head",
                got=f"head rows {digest[:16]}… in {source}",
                expected=f"head rows {self.head['digest'][:16]}…",
                remedy="run cluster-vocab with this target",
            )


def default_clusters(vocab_size: int) -> int:
    """Return our default for M, which DynaSpec does not specify: 1024 from 100,000 ids on, else V / 128."""
    return _LARGE_CLUSTERS if vocab_size >= _LARGE else max(2, round(vocab_size / _ROWS_A_CLUSTER))


def check_count(clusters: int, vocab_size: int) -> None:
    """Check that the number of clusters is useful for a vocabulary.

    Raises:
        UsageError: below 2, or above V / 2.
    """
    if not 2 <= clusters <= vocab_size / 2:
        raise UsageError(
            "the number of clusters does not suit the vocabulary",
            got=f"{clusters:,} clusters for {vocab_size:,} ids",
            expected=f"2 to {vocab_size // 2:,}",
            source="--clusters",
        )


def make_clusters(
    rows: UnitRows, options: KMeansOptions, *, fingerprint: str, head: Mapping[str, Any]
) -> Clusters:
    """Cluster the rows of an LM head into ``options.clusters``; zero rows, if any, form one of the clusters.

    Raises:
        UsageError: M below 2 or above V / 2, or more clusters than rows with a direction.
    """
    count = len(rows.ids) + len(rows.zero_ids)
    check_count(options.clusters, count)
    zero = len(rows.zero_ids) > 0
    result = spherical_kmeans(rows, replace(options, clusters=options.clusters - zero))
    assignment = np.full(count, options.clusters - 1, dtype=np.int64)
    assignment[rows.ids] = result.assignment
    centroids = np.zeros((options.clusters, rows.units.shape[1]), dtype=np.float32)
    centroids[: len(result.centroids)] = result.centroids
    cosine = np.zeros(options.clusters, dtype=np.float32)
    cosine[: len(result.cosine)] = result.cosine
    origin = {
        "seed": options.seed,
        "iterations": options.iterations,
        "objective": result.history[-1],
        "history": list(result.history),
        "converged": result.converged,
        "refilled": result.refilled,
        "quality": separation(rows.units, result.assignment, options.seed),
    }
    order, permutation, offsets = canonical(assignment, options.clusters)
    rank = np.argsort(order)  # of a permutation: its inverse
    return Clusters(
        permutation,
        offsets,
        rank[assignment].astype(np.int32),
        centroids[order],
        cosine[order],
        int(rank[-1]) if zero else None,
        fingerprint,
        dict(head),
        origin,
    )


def separation(units: Rows, assignment: Ids, seed: int = 0) -> dict[str, float]:
    """Return scikit-learn's scores of how well clusters are separated, over a sample of at most 4,096 unit rows.

    ``silhouette`` (Rousseeuw 1987, by cosine distance) is in -1 to 1; near 0, neighbouring clusters overlap.
    ``calinski_harabasz`` (1974) is the ratio of the spread between clusters to that within, higher is better.
    Empty if the sample lies in one cluster, or every row in its own.
    """
    from sklearn.metrics import calinski_harabasz_score, silhouette_score

    sample = np.arange(len(units))
    if len(sample) > _SAMPLE:
        sample = np.sort(np.random.default_rng(seed).choice(sample, _SAMPLE, replace=False))
    labels = assignment[sample]
    if not 1 < len(np.unique(labels)) < len(sample):
        return {}
    return {
        "silhouette": float(silhouette_score(units[sample], labels, metric="cosine")),
        "calinski_harabasz": float(calinski_harabasz_score(units[sample], labels)),
        "rows": len(sample),
    }


def canonical(assignment: Ids, clusters: int) -> tuple[Ids, Ids, Ids]:
    """Return the order of :class:`Clusters` for an assignment (V,) to non-empty clusters.

    Returns:
        order (M,): the old number of each new cluster; permutation (V,); offsets (M + 1,).
    """
    _, first = np.unique(assignment, return_index=True)
    order = np.argsort(first)
    renamed = np.argsort(order)[assignment]  # by the inverse of the permutation
    permutation = np.argsort(renamed, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(renamed, minlength=clusters))])
    return order, permutation.astype(np.int64), offsets.astype(np.int64)


def save_clusters(
    clusters: Clusters,
    path: Path,
    *,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the artefact (kind ``clusters``); ``config`` is recorded but not part of the content."""
    meta = {
        "clusters": len(clusters),
        "vocab_size": clusters.vocab_size,
        "zero_cluster": clusters.zero_cluster,
        "fingerprint": clusters.fingerprint,
        "head": dict(clusters.head),
        "origin": dict(clusters.origin),
    }
    arrays = {name: np.ascontiguousarray(getattr(clusters, name)) for name in _FORMS}
    with write_artifact(path, KIND, meta, config=config, overwrite=overwrite) as folder:
        save_file(arrays, folder / _FILE)


def load_clusters(path: Path) -> Clusters:
    """Load and verify the artefact.

    Raises:
        ArtifactError: no such artefact, or its arrays are inconsistent.
    """
    artifact = open_artifact(path, KIND)
    meta = artifact.meta
    with form_errors("the clusters cannot be read", path, remedy="make them again with cluster-vocab"):
        arrays = load_file(artifact.file(_FILE))
        zero = meta["zero_cluster"]
        clusters = Clusters(
            **{name: arrays[name] for name in _FORMS},
            zero_cluster=None if zero is None else int(zero),
            fingerprint=str(meta["fingerprint"]),
            head=dict(meta["head"]),
            origin=dict(meta["origin"]),
        )
        if problem := disagreement(clusters, int(meta["clusters"]), int(meta["vocab_size"])):
            raise ValueError(problem)
    return clusters


def disagreement(clusters: Clusters, count: int, vocab_size: int) -> str | None:
    """Return what is wrong with the arrays of M = ``count`` clusters over V = ``vocab_size`` ids, or None."""
    shapes = {
        "permutation": (vocab_size,),
        "offsets": (count + 1,),
        "assignment": (vocab_size,),
        "centroids": (count, int(clusters.head["width"])),
        "cosine": (count,),
    }
    for name, shape in shapes.items():
        array = getattr(clusters, name)
        if array.shape != shape or array.dtype != _FORMS[name]:
            return f"{name} is {array.dtype} {array.shape}, not {np.dtype(_FORMS[name])} {shape}"
    assignment = clusters.assignment.astype(np.int64)
    if not np.array_equal(np.unique(assignment), np.arange(count)):
        return f"the assignment does not use exactly {count} clusters"
    _, permutation, offsets = canonical(assignment, count)
    if not np.array_equal(permutation, clusters.permutation) or not np.array_equal(offsets, clusters.offsets):
        return "the clusters are not in the canonical order of their assignment"
    if not np.array_equal(assignment[permutation], np.repeat(np.arange(count), np.diff(offsets))):
        return "the assignment does not number the clusters in their canonical order"
    if not (np.isfinite(clusters.centroids).all() and np.isfinite(clusters.cosine).all()):
        return "a centroid or a cosine is not finite"
    if clusters.zero_cluster is not None and not 0 <= clusters.zero_cluster < count:
        return f"no such cluster: {clusters.zero_cluster}"
    return None


def cluster_figures(clusters: Clusters) -> dict[str, Any]:
    """Return statistics of clusters, ready for JSON.

    ``balance`` is the entropy of the sizes over log M (1 = all equal), ``mean_cosine`` the mean cosine of all
    rows with a direction to their centroid.
    """
    sizes = clusters.sizes
    share = sizes / sizes.sum()
    directed = np.arange(len(clusters)) != (-1 if clusters.zero_cluster is None else clusters.zero_cluster)
    return {
        "clusters": len(clusters),
        "vocab_size": clusters.vocab_size,
        "sizes": {name: float(np.quantile(sizes, at)) for name, at in _QUANTILES.items()},
        "balance": float(-(share * np.log(share)).sum() / np.log(len(clusters))),
        "mean_cosine": float((clusters.cosine.astype(np.float64) * sizes).sum() / sizes[directed].sum()),
        "zero_rows": 0 if clusters.zero_cluster is None else int(sizes[clusters.zero_cluster]),
        "padded_rows": int(clusters.head["padded"]),
        "quality": dict(clusters.origin.get("quality", {})),
    }
