"""Libraries that find the nearest centroids, and the choice among them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.errors import UsageError, VocabForgeError
from .rows import Ids, Rows

# (n, d) unit rows -> the min(2, M) best centroids of each: ids and inner products, the better first.
Search = Callable[[Rows], tuple[Ids, Rows]]
AUTO = "auto"


@dataclass(frozen=True)
class Backend:
    """Nearest centroids by inner product, in float32.

    It only proposes candidates: the k-means itself decides near ties in float64, so every backend gives the same
    clusters.

    Attributes:
        name: of ``--backend``.
        search: a search over centroids (M, d).
        missing: why this machine cannot use it, or None.
    """

    name: str
    search: Callable[[Rows], Search]
    missing: Callable[[], str | None] = lambda: None


def choose_backend(name: str = AUTO) -> tuple[Backend, list[str]]:
    """The backend of this name, or with ``auto`` the first one that this machine has.

    Returns:
        the backend, and one reason for each earlier one that was not taken.

    Raises:
        UsageError: no such name.
        VocabForgeError: asked for by name and not installed.
    """
    if name != AUTO:
        if name not in BACKENDS:
            raise UsageError("there is no such backend", got=name, expected=", ".join([AUTO, *BACKENDS]))
        if (reason := BACKENDS[name].missing()) is not None:
            raise VocabForgeError(
                f"the k-means backend {name} cannot be used here",
                got=reason,
                source="--backend",
                remedy="pip install 'vocabforge[gpu]' (faiss with CUDA) or 'vocabforge[cpu]' (faiss); "
                "or use --backend auto",
            )
        return BACKENDS[name], []
    reasons: list[str] = []
    for backend in BACKENDS.values():
        if (reason := backend.missing()) is None:
            break
        reasons.append(f"{backend.name}: {reason}")
    return backend, reasons  # torch is always there


def absent(module: str, package: str) -> str | None:
    """Why an optional module cannot be imported, or None."""
    if importlib.util.find_spec(module) is None:
        return f"{package} is not installed"
    try:
        load(module)
    except (ImportError, OSError) as error:  # there, but a library that it needs is not
        return f"{package} is installed but cannot be imported: {error}"
    return None


def load(module: str) -> Any:
    """An optional module."""
    return importlib.import_module(module)


def _no_faiss_gpu() -> str | None:
    if (reason := absent("faiss", "faiss with CUDA")) is not None:
        return reason
    faiss = load("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        return "the installed faiss was built without CUDA"
    return None if faiss.get_num_gpus() else "faiss sees no GPU"


def _faiss(centroids: Rows) -> Search:
    index = load("faiss").IndexFlatIP(centroids.shape[1])
    return _searcher(index, centroids)


def _faiss_gpu(centroids: Rows) -> Search:
    faiss = load("faiss")
    resources = faiss.StandardGpuResources()
    index = faiss.index_cpu_to_gpu(resources, 0, faiss.IndexFlatIP(centroids.shape[1]))
    return _searcher(index, centroids, resources)


def _searcher(index: Any, centroids: Rows, *kept: object) -> Search:
    index.add(centroids)
    nearest = min(2, len(centroids))

    def search(
        rows: Rows, _kept: object = kept
    ) -> tuple[Ids, Rows]:  # the index uses these and does not own them
        scores, ids = index.search(rows, nearest)
        return ids, scores

    return search


def _torch(centroids: Rows) -> Search:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    columns = torch.from_numpy(centroids).to(device).T  # (d, M)
    nearest = min(2, len(centroids))

    def search(rows: Rows) -> tuple[Ids, Rows]:
        scores, ids = torch.topk(torch.from_numpy(rows).to(device) @ columns, nearest)
        return ids.cpu().numpy(), scores.cpu().numpy()

    return search


# `auto` takes the first that this machine has.
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("faiss-gpu", _faiss_gpu, _no_faiss_gpu),
        Backend("faiss", _faiss, lambda: absent("faiss", "faiss")),
        Backend("torch", _torch),
    )
}
