"""Nearest centroids by scikit-learn's brute-force neighbours, where faiss is not installed."""

from __future__ import annotations

import numpy as np

from .kmeans_backends import Search, absent, load
from .kmeans_rows import Ids, Rows


class Sklearn:
    """Euclidean neighbours: between unit vectors |x - c|^2 = 2 - 2 x·c, so the order is the cosine's."""

    name = "sklearn"

    def missing(self) -> str | None:
        return absent("sklearn", "scikit-learn")

    def search(self, centroids: Rows) -> Search:
        neighbours = load("sklearn.neighbors").NearestNeighbors(
            n_neighbors=min(2, len(centroids)), algorithm="brute", metric="euclidean"
        )
        neighbours.fit(centroids)

        def search(rows: Rows) -> tuple[Ids, Rows]:
            distances, ids = neighbours.kneighbors(rows)
            return ids.astype(np.int64), (1.0 - 0.5 * distances.astype(np.float64) ** 2).astype(np.float32)

        return search
