"""Libraries that find the nearest centroids, in one literal table, and the choice among them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from ..core.errors import UsageError, VocabForgeError
from ..core.extension import resolve
from .kmeans_rows import Ids, Rows

# (n, d) unit rows -> the min(2, M) best centroids of each: ids and inner products, the better first.
Search = Callable[[Rows], tuple[Ids, Rows]]

AUTO = "auto"
# name -> "module:attr"; `auto` takes the first that this machine has.
BACKENDS: dict[str, str] = {
    "faiss-gpu": "vocabforge.vocab.kmeans_faiss:FaissGpu",
    "faiss": "vocabforge.vocab.kmeans_faiss:FaissCpu",
    "sklearn": "vocabforge.vocab.kmeans_sklearn:Sklearn",
    "torch": "vocabforge.vocab.kmeans_torch:Torch",
}


class Backend(Protocol):
    """Nearest centroids by inner product, in float32.

    Only candidates come from here: what float32 cannot decide is decided in float64 by the k-means itself,
    so that every backend gives the same clusters.
    """

    name: str

    def missing(self) -> str | None:
        """Why this machine cannot use it, or None."""

    def search(self, centroids: Rows) -> Search:
        """A search over centroids (M, d)."""


def choose_backend(name: str = AUTO) -> tuple[Backend, list[str]]:
    """The backend of this name, or with ``auto`` the first of the table that is there; and why.

    Returns:
        the backend, and one reason for each that stands before it and was not taken.

    Raises:
        UsageError: no such name.
        VocabForgeError: asked for by name and not there.
    """
    if name != AUTO:
        if name not in BACKENDS:
            raise UsageError("there is no such backend", got=name, expected=", ".join([AUTO, *BACKENDS]))
        backend: Backend = resolve(BACKENDS, name, "backend")()
        if (reason := backend.missing()) is not None:
            raise VocabForgeError(
                f"the k-means backend {name} cannot be used here",
                got=reason,
                source="--backend",
                remedy="pip install 'vocabforge[gpu]' (faiss with CUDA), 'vocabforge[cpu]' (faiss) or "
                "'vocabforge[sklearn]'; or use --backend auto",
            )
        return backend, []
    reasons: list[str] = []
    for row in BACKENDS:
        backend = resolve(BACKENDS, row, "backend")()
        if (reason := backend.missing()) is None:
            return backend, reasons
        reasons.append(f"{row}: {reason}")
    raise VocabForgeError(
        "no k-means backend can be used here",
        got="; ".join(reasons),
        expected=", ".join(BACKENDS),
        remedy="pip install 'vocabforge[cpu]' (faiss) or 'vocabforge[sklearn]'",
    )


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
