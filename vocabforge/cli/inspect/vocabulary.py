"""Views of frequency tables, draft vocabularies, clusters and comparisons of vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ..vocab.compare_tables import overlap_tables
from .parts import View, ViewRequest, facts_table, scalars

if TYPE_CHECKING:
    from ...core.artifact import Artifact

_A_LINE = 8  # members of a cluster per line


def counts_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return totals, the ``top`` most frequent and rarest tokens, and the special tokens."""
    from ...vocab.counts.table import load_counts

    table = load_counts(artifact.path)
    order = np.argsort(-table.counts, kind="stable")[: table.seen]  # ties: lower id first
    special = {
        "end": table.special.eos,
        "control": table.special.control,
        "tools": table.special.tools,
        "other": tuple(token for token in table.special.others if table.counts[token]),
    }

    def rows(ids: Iterable[int]) -> list[dict[str, Any]]:
        return [
            {
                **request.token(int(token)),
                "count": int(table.counts[token]),
                "share": int(table.counts[token]) / table.tokens if table.tokens else None,
            }
            for token in ids
        ]

    return View(
        {
            "mode": table.mode,
            "tokens": table.tokens,
            "documents": table.documents,
            "bytes": table.bytes,
            "bytes_per_token": round(table.bytes / table.tokens, 3) if table.tokens else None,
            "vocabulary": table.vocab_size,
            "ids_with_a_count": table.seen,
            "tokenizer": table.fingerprint,
            "sources": len(table.sources),
            "domains": {
                name: {"tokens": part.tokens, "documents": part.documents, "bytes": part.bytes}
                for name, part in table.domains.items()
            },
            "top": rows(order[: request.top]),
            "rare": rows(order[::-1][: request.top]),
            "special": [
                {**row, "purpose": ", ".join(name for name, ids in special.items() if row["id"] in ids)}
                for row in rows(sorted({*chain(*special.values())}))
            ],
            "origin": dict(table.origin),
        }
    )


def subset_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return size, coverage, forced tokens, other manifest facts, and the first and last ranks."""
    from ...vocab.subset.subset import load_subset

    subset = load_subset(artifact.path)
    known = ("size", "vocab_size", "fingerprint", "forced", "coverage", "filled")
    ranks = [{"rank": rank, **request.token(token)} for rank, token in enumerate(subset.ranked.tolist(), 1)]
    few = 2 * request.top >= len(ranks)
    return View(
        {
            "size": len(subset),
            "vocabulary": subset.vocab_size,
            "share_of_the_vocabulary": len(subset) / subset.vocab_size,
            "coverage": subset.coverage,
            "filled": subset.filled,
            "tokenizer": subset.fingerprint,
            **{
                name: value
                for name, value in artifact.meta.items()
                if name not in known and value not in ({}, [])
            },
            "forced": [request.token(token) for token in subset.forced],
            "first": ranks if few else ranks[: request.top],
            "last": [] if few else ranks[-request.top :],
        }
    )


def clusters_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return sizes, and the largest clusters with some of their tokens."""
    from ...vocab.clusters.clusters import load_clusters

    clusters = load_clusters(artifact.path)
    sizes = clusters.sizes
    return View(
        {
            "clusters": len(clusters),
            "vocabulary": clusters.vocab_size,
            "width": int(clusters.centroids.shape[1]),
            "ids_a_cluster": float(sizes.mean()),
            "smallest": int(sizes.min()),
            "largest": int(sizes.max()),
            "mean_cosine_to_the_centroid": float(np.average(clusters.cosine, weights=sizes)),
            "cluster_of_zero_rows": clusters.zero_cluster,
            "tokenizer": clusters.fingerprint,
            "head": scalars(clusters.head),
            "origin": scalars(clusters.origin),
            "largest_clusters": [
                {
                    "cluster": cluster,
                    "size": int(sizes[cluster]),
                    "cosine": float(clusters.cosine[cluster]),
                    "members": [
                        request.token(token) for token in clusters.members(cluster)[:_A_LINE].tolist()
                    ],
                }
                for cluster in np.argsort(-sizes, kind="stable")[: request.top].tolist()
            ],
        }
    )


def overlap_view(artifact: Artifact, request: ViewRequest) -> View:
    """Return the tables of ``compare-vocab``."""
    from ...vocab.overlap.overlap import load_overlap

    overlap = load_overlap(artifact.path)
    made_of = artifact.manifest.get("config") or {}
    shown = [*([facts_table(made_of, "Compared")] if made_of else []), *overlap_tables(overlap)]
    return View({**overlap.to_json(), "first_pairs": overlap.pairs[: request.top].tolist()}, shown)
