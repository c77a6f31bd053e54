"""Figures of vocabulary clusters: sizes, balance, cohesion, and a few clusters to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .clusters import Clusters

_QUANTILES = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}


def cluster_figures(clusters: Clusters) -> dict[str, Any]:
    """What is reported of clusters, ready for JSON.

    ``balance`` is the entropy of the sizes over log M (1 = all equal), ``variation`` their standard deviation
    over their mean. ``mean_cosine`` is over all rows with a direction, ``cluster_cosine`` has quantiles over
    clusters of their rows' mean cosine. ``share_of_largest_10`` is a share of the vocabulary.
    """
    sizes = clusters.sizes
    share = sizes / sizes.sum()
    directed = np.arange(len(clusters)) != (-1 if clusters.zero_cluster is None else clusters.zero_cluster)
    cosine = clusters.cosine[directed].astype(np.float64)
    return {
        "clusters": len(clusters),
        "vocab_size": clusters.vocab_size,
        "sizes": {name: float(np.quantile(sizes, at)) for name, at in _QUANTILES.items()},
        "mean_size": float(sizes.mean()),
        "share_of_largest_10": float(np.sort(share)[::-1][:10].sum()),
        "singletons": int((sizes == 1).sum()),
        "balance": float(-(share * np.log(share)).sum() / np.log(len(clusters))),
        "variation": float(sizes.std() / sizes.mean()),
        "mean_cosine": float((cosine * sizes[directed]).sum() / sizes[directed].sum()),
        "cluster_cosine": {name: float(np.quantile(cosine, at)) for name, at in _QUANTILES.items()},
        "zero_rows": 0 if clusters.zero_cluster is None else int(sizes[clusters.zero_cluster]),
        "padded_rows": int(clusters.head["padded"]),
        "histogram": size_histogram(clusters),
    }


def size_histogram(clusters: Clusters) -> list[dict[str, int]]:
    """Clusters and ids by size, in bins [2^k, 2^(k+1)) from the smallest size to the largest."""
    sizes = clusters.sizes
    bins = np.floor(np.log2(sizes)).astype(int)
    return [
        {
            "from": 2**k,
            "to": 2 ** (k + 1) - 1,
            "clusters": int((bins == k).sum()),
            "ids": int(sizes[bins == k].sum()),
        }
        for k in range(int(bins.min()), int(bins.max()) + 1)
    ]


def examples(clusters: Clusters, text_of: Callable[[int], str], *, tokens: int = 12) -> list[dict[str, Any]]:
    """A few clusters with their lowest ids, as text: by size the largest, median and smallest; by cohesion the
    tightest, median and loosest of those with at least 4 ids; each once."""
    by_size = np.lexsort((np.arange(len(clusters)), -clusters.sizes))
    fair = np.flatnonzero(clusters.sizes >= min(4, int(clusters.sizes.max())))
    by_cosine = fair[np.lexsort((fair, -clusters.cosine[fair]))]
    chosen: dict[int, str] = {}
    for order, names in (
        (by_size, ("largest", "of median size", "smallest")),
        (by_cosine, ("tightest", "of median cosine", "loosest")),
    ):
        for name, at in zip(names, (0, len(order) // 2, len(order) - 1), strict=True):
            chosen.setdefault(int(order[at]), name)
    return [
        {
            "cluster": cluster,
            "why": why,
            "size": int(clusters.sizes[cluster]),
            "cosine": float(clusters.cosine[cluster]),
            "tokens": [text_of(int(token)) for token in clusters.members(cluster)[:tokens]],
        }
        for cluster, why in chosen.items()
    ]
