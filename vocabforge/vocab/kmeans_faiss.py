"""Nearest centroids by faiss: an exact flat index, on the CPU or on a GPU."""

from __future__ import annotations

from typing import Any

from .kmeans_backends import Search, absent, load
from .kmeans_rows import Ids, Rows


class FaissCpu:
    """``IndexFlatIP`` on all cores."""

    name = "faiss"

    def missing(self) -> str | None:
        return absent("faiss", "faiss")

    def search(self, centroids: Rows) -> Search:
        index = load("faiss").IndexFlatIP(centroids.shape[1])
        return _searcher(index, centroids)


class FaissGpu:
    """The same index on the first GPU."""

    name = "faiss-gpu"

    def missing(self) -> str | None:
        reason = absent("faiss", "faiss with CUDA")
        if reason is not None:
            return reason
        faiss = load("faiss")
        if not hasattr(faiss, "StandardGpuResources"):
            return "the installed faiss was built without CUDA"
        return None if faiss.get_num_gpus() else "faiss sees no GPU"

    def search(self, centroids: Rows) -> Search:
        faiss = load("faiss")
        resources = faiss.StandardGpuResources()
        flat = faiss.IndexFlatIP(centroids.shape[1])
        return _searcher(faiss.index_cpu_to_gpu(resources, 0, flat), centroids, resources)


def _searcher(index: Any, centroids: Rows, *kept: object) -> Search:
    """``kept`` are objects that the index uses and does not own."""
    index.add(centroids)
    nearest = min(2, len(centroids))

    def search(rows: Rows, _kept: object = kept) -> tuple[Ids, Rows]:
        scores, ids = index.search(rows, nearest)
        return ids, scores

    return search
