"""Draft vocabularies, clusters and comparisons of vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compare_tables import overlap_tables
from .parts import Request, View, bar, facts_table, hint, json_names, percent, scalars, table_of, value_text

if TYPE_CHECKING:
    from ...core.artifact import Artifact

_A_LINE = 8  # members of a cluster, or ids, that one line shows


def subset_view(artifact: Artifact, request: Request) -> View:
    """Size, coverage, forced tokens, further facts of the manifest, first and last ranks."""
    from ...vocab.subset import load_subset

    subset = load_subset(artifact.path)
    facts: dict[str, Any] = {
        "size": len(subset),
        "vocabulary": subset.vocab_size,
        "share of the vocabulary": len(subset) / subset.vocab_size,
        "coverage": subset.coverage,
        "forced": len(subset.forced),
        "filled": subset.filled,
        "tokenizer": subset.fingerprint,
    }
    known = ("size", "vocab_size", "fingerprint", "forced", "coverage", "filled")
    more = {
        name: value for name, value in artifact.meta.items() if name not in known and value not in ({}, [])
    }
    ranks = [{"rank": rank, **_token(token, request)} for rank, token in enumerate(subset.ranked.tolist(), 1)]
    few = 2 * request.top >= len(ranks)
    first, last = (ranks, []) if few else (ranks[: request.top], ranks[-request.top :])
    forced = [_token(token, request) for token in subset.forced]
    readable_facts = {
        **facts,
        "share of the vocabulary": percent(facts["share of the vocabulary"]),
        "coverage": percent(subset.coverage),
        "tokenizer": f"{subset.fingerprint[:16]}…",
    }
    shown: list[Any] = [facts_table({**readable_facts, **more})]
    if forced:
        shown.append(_tokens("Forced tokens", forced[: request.top]))
    shown.append(_tokens("All ranks" if few else "First ranks", first))
    if last:
        shown.append(_tokens("Last ranks", last))
    body = {**json_names(facts), **more, "forced": forced, "first": first, "last": last}
    return View(body, [*shown, *hint(request.names)])


def _token(token: int, request: Request) -> dict[str, Any]:
    return {"id": token, "text": request.names.text(token)}


def _tokens(title: str, rows: list[dict[str, Any]]) -> Any:
    if rows and "rank" in rows[0]:
        cells = [(f"{row['rank']:,}", str(row["id"]), row["text"]) for row in rows]
        return table_of(title, ("rank", "id", "token<"), cells)
    return table_of(title, ("id", "token<"), [(str(row["id"]), row["text"]) for row in rows])


def clusters_view(artifact: Artifact, request: Request) -> View:
    """Sizes, and the largest clusters with some of their tokens."""
    from ...vocab.clusters import load_clusters

    clusters = load_clusters(artifact.path)
    sizes = clusters.sizes
    facts: dict[str, Any] = {
        "clusters": len(clusters),
        "vocabulary": clusters.vocab_size,
        "width": int(clusters.centroids.shape[1]),
        "ids a cluster": float(sizes.mean()),
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
        "mean cosine to the centroid": float(np.average(clusters.cosine, weights=sizes)),
        "cluster of zero rows": clusters.zero_cluster,
        "tokenizer": clusters.fingerprint,
    }
    head, origin = scalars(clusters.head), scalars(clusters.origin)
    order = np.argsort(-sizes, kind="stable")[: request.top].tolist()
    largest = [
        {
            "cluster": cluster,
            "size": int(sizes[cluster]),
            "cosine": float(clusters.cosine[cluster]),
            "members": [_token(token, request) for token in clusters.members(cluster)[:_A_LINE].tolist()],
        }
        for cluster in order
    ]
    spread = _size_spread(sizes)
    shown = [
        facts_table(
            {
                **facts,
                "tokenizer": f"{clusters.fingerprint[:16]}…",
                **{f"head {name}": value for name, value in head.items()},
                **origin,
            }
        ),
        table_of(
            "Clusters by size",
            ("ids", "clusters", "<"),
            [(name, f"{number:,}", bar(number, max(spread.values()))) for name, number in spread.items()],
        ),
        table_of(
            f"The largest clusters ({len(largest)})",
            ("cluster", "ids", "cosine", "some of their tokens<"),
            [
                (str(row["cluster"]), f"{row['size']:,}", f"{row['cosine']:.3f}", _members(row["members"]))
                for row in largest
            ],
        ),
    ]
    body = {
        **json_names(facts),
        "head": head,
        "origin": origin,
        "spread": spread,
        "largest_clusters": largest,
    }
    return View(body, [*shown, *hint(request.names)])


def _members(rows: Iterable[dict[str, Any]]) -> str:
    return "  ".join(row["text"] or str(row["id"]) for row in rows)


def _size_spread(sizes: Any) -> dict[str, int]:
    """Number of clusters by size: in powers of two."""
    found: dict[str, int] = {}
    low = 1
    while low <= int(sizes.max(initial=0)):
        number = int(np.count_nonzero((sizes >= low) & (sizes < 2 * low)))
        if number or found:
            found[f"{low:,}" if low == 1 else f"{low:,} to {2 * low - 1:,}"] = number
        low *= 2
    return found


def overlap_view(artifact: Artifact, request: Request) -> View:
    """The tables of ``compare-vocab``."""
    from ...vocab.overlap import load_overlap

    overlap = load_overlap(artifact.path)
    made_of = artifact.manifest.get("config") or {}
    record = {name: value_text(value) for name, value in made_of.items()}
    shown = [*([facts_table(record, "Compared")] if record else []), *overlap_tables(overlap)]
    first = overlap.pairs[: request.top].tolist()
    return View({**overlap.to_json(), "first_pairs": first}, shown)
