"""How much of what the target wants lies in a few vocabulary clusters (DynaSpec), on a text.

For each context, with the target's hidden state h behind its final norm, logits z = U h over the tokenizer's V
ids (padded rows left out) and p = softmax(z), the M clusters are put in an order, and the first m make the
shortlist. Three orders, ties to the lower cluster:

- ``logit``: by the largest logit in a cluster, an oracle. Its argmax recall is 1 at m = 1 by construction;
  what it tells is the probability mass that comes along.
- ``mass``: by the probability of a cluster, an oracle: no order has more mass in its first m clusters.
- ``centroid``: by centroid · h, which needs M inner products and no router: a floor for a trained one.

Reported for each m, as means over contexts: ``recall``, how often the argmax of z (ties to the lower id) is in
the shortlist; ``mass``, the probability of the shortlist, which is the acceptance that no drafter limited to it
can pass (``ceilings.py``); ``tokens``, the size of the shortlist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.console import ProgressBar
from ...vocab.clusters.clusters import Clusters
from ...vocab.clusters.rows import RowSource

RANKINGS = ("logit", "mass", "centroid")
Floats = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]
_LOGIT_BYTES = 256 << 20
_ROWS = 8192


def ladder(clusters: int) -> tuple[int, ...]:
    """1, 2, 4, ... below M, and M."""
    return (*(2**k for k in range(clusters.bit_length()) if 2**k < clusters), clusters)


def by_cluster(logits: Floats, clusters: Clusters) -> tuple[Floats, Floats]:
    """Largest logit and probability of every cluster: (n, V) logits -> (n, M), (n, M) float64."""
    slabs = logits[:, clusters.permutation]  # (n, V), a cluster is contiguous
    starts = clusters.offsets[:-1]
    best = np.maximum.reduceat(slabs, starts, axis=1)
    slabs = np.exp(slabs - best.max(axis=1, keepdims=True))
    mass = np.add.reduceat(slabs, starts, axis=1, dtype=np.float64)
    return best, mass / mass.sum(axis=1, keepdims=True)


def tally(
    scores: Floats, mass: Floats, wanted: Ids, sizes: Ids, steps: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Recall, mass and tokens for the first m clusters by ``scores``, each summed over contexts: (len(steps), 3).

    Args:
        scores, mass: (n, M), the larger the earlier; probability of each cluster.
        wanted: (n,) cluster of the argmax. sizes: (M,) ids of each cluster.
        steps: the m.
    """
    order = np.argsort(-scores, axis=1, kind="stable")  # (n, M)
    found = np.cumsum(order == wanted[:, None], axis=1)
    inside = np.cumsum(np.take_along_axis(mass, order, axis=1), axis=1)
    tokens = np.cumsum(sizes[order], axis=1)
    at = np.asarray(steps) - 1
    return np.stack([found[:, at].sum(0), inside[:, at].sum(0), tokens[:, at].sum(0)], axis=1).astype(
        np.float64
    )


def cluster_recall(
    hidden: npt.NDArray[np.float32], head: RowSource, clusters: Clusters, steps: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """The module's figures for (N, d) hidden states as the LM head reads them, for each ranking and m of ``steps``.

    Args:
        head: rows of the LM head; the first V are read, block by block.
        clusters: made from that head.
    """
    steps = steps or ladder(len(clusters))
    total = {name: np.zeros((len(steps), 3)) for name in RANKINGS}
    batch = max(1, _LOGIT_BYTES // (4 * clusters.vocab_size))
    with ProgressBar("cluster recall", len(hidden), "contexts") as bar:
        for start in range(0, len(hidden), batch):
            some = hidden[start : start + batch]  # (n, d)
            logits = _logits(some, head, clusters.vocab_size)
            best, mass = by_cluster(logits, clusters)
            wanted = clusters.assignment[logits.argmax(axis=1)].astype(np.int64)
            scores = {"logit": best, "mass": mass, "centroid": some @ clusters.centroids.T}
            for name, ranked in scores.items():
                total[name] += tally(ranked, mass, wanted, clusters.sizes, steps)
            bar.update(len(some))
    return [
        {"ranking": name, "m": m} | dict(zip(("recall", "mass", "tokens"), (row / len(hidden)).tolist()))
        for name, table in total.items()
        for m, row in zip(steps, table, strict=True)
    ]


def _logits(hidden: npt.NDArray[np.float32], head: RowSource, vocab_size: int) -> npt.NDArray[np.float32]:
    logits = np.empty((len(hidden), vocab_size), dtype=np.float32)
    for start in range(0, vocab_size, _ROWS):
        stop = min(start + _ROWS, vocab_size)
        logits[:, start:stop] = hidden @ head.rows(start, stop).T
    return logits
