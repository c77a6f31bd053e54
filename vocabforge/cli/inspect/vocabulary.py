"""Frequency tables, draft vocabularies, clusters and comparisons of vocabularies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...core.console import bar, percent
from ..vocab.compare_tables import overlap_tables
from .parts import View, ViewRequest, facts_table, hint, json_names, rows_table, scalars

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...core.artifact import Artifact

Ids = npt.NDArray[np.int64]
_A_LINE = 8  # members of a cluster that one line shows
_SHARES = (0.5, 0.9, 0.95, 0.99)


def counts_view(artifact: Artifact, request: ViewRequest) -> View:
    """Totals, how counts are spread, the ``top`` most frequent and rarest tokens, the special ones."""
    from ...vocab.counts.table import load_counts

    table = load_counts(artifact.path)
    order = np.argsort(-table.counts, kind="stable")[: table.seen]  # ties to the lower id
    facts: dict[str, Any] = {
        "mode": table.mode,
        "tokens": table.tokens,
        "documents": table.documents,
        "bytes": table.bytes,
        "bytes per token": round(table.bytes / table.tokens, 3) if table.tokens else None,
        "vocabulary": table.vocab_size,
        "ids with a count": table.seen,
        "tokenizer": table.fingerprint,
        "sources": len(table.sources),
    }
    reached = np.cumsum(table.counts[order])
    carried = {
        f"{share:.0%}": int(np.searchsorted(reached, np.ceil(share * table.tokens))) + 1
        for share in _SHARES
        if table.tokens
    }
    edges = [0, 1, 2]
    while edges[-1] <= int(table.counts.max(initial=0)):
        edges.append(10 ** len(str(edges[-1])))
    spread = _spread(table.counts, edges)
    special = {
        "end": table.special.eos,
        "control": table.special.control,
        "tools": table.special.tools,
        "other": tuple(token for token in table.special.others if table.counts[token]),
    }

    def rows(ids: Iterable[int]) -> list[dict[str, Any]]:
        return [
            {
                **_token(int(token), request),
                "count": int(table.counts[token]),
                "share": int(table.counts[token]) / table.tokens if table.tokens else None,
            }
            for token in ids
        ]

    lists = {
        "top": rows(order[: request.top]),
        "rare": rows(order[::-1][: request.top]),
        "special": [
            {**row, "purpose": ", ".join(name for name, ids in special.items() if row["id"] in ids)}
            for row in rows(sorted({*chain(*special.values())}))
        ],
    }
    domains = {
        name: {"tokens": part.tokens, "documents": part.documents, "bytes": part.bytes}
        for name, part in table.domains.items()
    }
    shares = [
        {"domain": name, "share": part["tokens"] / table.tokens if table.tokens else None, **part}
        for name, part in domains.items()
    ]
    most = {f"ids that carry {share}": number for share, number in carried.items()}
    shown: list[RenderableType] = [facts_table({**facts, **most})]
    shown += [rows_table("Domains", shares)] if domains else []
    shown += [
        rows_table("Ids by count", _spread_rows("count", "ids", spread)),
        rows_table(f"Most frequent tokens ({len(lists['top'])})", lists["top"], bars="count"),
        rows_table(f"Rarest tokens that occur ({len(lists['rare'])})", lists["rare"]),
    ]
    shown += [rows_table("Special tokens", lists["special"])] if lists["special"] else []
    body = {**json_names(facts), "ids_that_carry": carried, "domains": domains, "spread": spread, **lists}
    return View({**body, "origin": dict(table.origin)}, [*shown, *hint(request.names)])


def _spread(values: Ids, edges: list[int]) -> dict[str, int]:
    """How many values there are between each two edges, by name."""
    return {
        f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}": int(
            np.count_nonzero((values >= low) & (values < high))
        )
        for low, high in pairwise(edges)
    }


def _spread_rows(what: str, number: str, spread: dict[str, int]) -> list[dict[str, Any]]:
    largest = max((count for name, count in spread.items() if name != "0"), default=1)
    return [
        {what: name, number: count, " ": "(do not occur)" if name == "0" else bar(count, largest)}
        for name, count in spread.items()
    ]


def _token(token: int, request: ViewRequest) -> dict[str, Any]:
    return {"id": token, "text": request.names.text(token)}


def subset_view(artifact: Artifact, request: ViewRequest) -> View:
    """Size, coverage, forced tokens, further facts of the manifest, first and last ranks."""
    from ...vocab.subset.subset import load_subset

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
    for_people = {name: percent(facts[name]) for name in ("share of the vocabulary", "coverage")}
    shown: list[RenderableType] = [facts_table({**facts, **for_people, **more})]
    lists = {"Forced tokens": forced[: request.top], "All ranks" if few else "First ranks": first}
    shown += [rows_table(title, rows) for title, rows in {**lists, "Last ranks": last}.items() if rows]
    body = {**json_names(facts), **more, "forced": forced, "first": first, "last": last}
    return View(body, [*shown, *hint(request.names)])


def clusters_view(artifact: Artifact, request: ViewRequest) -> View:
    """Sizes, and the largest clusters with some of their tokens."""
    from ...vocab.clusters.clusters import load_clusters

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
    largest = [
        {
            "cluster": cluster,
            "size": int(sizes[cluster]),
            "cosine": float(clusters.cosine[cluster]),
            "members": [_token(token, request) for token in clusters.members(cluster)[:_A_LINE].tolist()],
        }
        for cluster in np.argsort(-sizes, kind="stable")[: request.top].tolist()
    ]
    edges = [1]
    while edges[-1] <= int(sizes.max(initial=0)):
        edges.append(2 * edges[-1])
    spread = _spread(sizes, edges)
    while spread and not next(iter(spread.values())):  # the first sizes that no cluster has
        del spread[next(iter(spread))]
    some = [
        {**row, "members": "  ".join(one["text"] or str(one["id"]) for one in row["members"])}
        for row in largest
    ]
    shown: list[RenderableType] = [
        facts_table({**facts, **{f"head {name}": value for name, value in head.items()}, **origin}),
        rows_table("Clusters by size", _spread_rows("ids", "clusters", spread)),
        rows_table(f"The largest clusters ({len(largest)})", some),
    ]
    body = {
        **json_names(facts),
        "head": head,
        "origin": origin,
        "spread": spread,
        "largest_clusters": largest,
    }
    return View(body, [*shown, *hint(request.names)])


def overlap_view(artifact: Artifact, request: ViewRequest) -> View:
    """The tables of ``compare-vocab``."""
    from ...vocab.overlap.overlap import load_overlap

    overlap = load_overlap(artifact.path)
    made_of = artifact.manifest.get("config") or {}
    shown = [*([facts_table(made_of, "Compared")] if made_of else []), *overlap_tables(overlap)]
    first = overlap.pairs[: request.top].tolist()
    return View({**overlap.to_json(), "first_pairs": first}, shown)
