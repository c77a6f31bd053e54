"""What ``cluster-vocab`` prints: figures, sizes and recall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.console import DataTable
from ..app import stdout_console

_RECALL_NOTE = (
    "The first m clusters by their best logit (recall is 1 by construction), by their probability mass, and by "
    "centroid · hidden state (c·h). recall: the target's argmax is in them; mass: their probability; tokens: their "
    "size. Means over contexts."
)
_LARGE = 0.25  # share of the vocabulary in one cluster from which a router can save little


def print_clusters(facts: Mapping[str, Any]) -> None:
    """Tables on stdout from the facts that ``--json`` prints."""
    out = stdout_console(highlight=True)
    for line in _summary(facts):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if (warning := large_cluster(facts["figures"])) is not None:
        out.print(warning, style="bold", markup=False, highlight=False, soft_wrap=True)
    if facts["recall"] is not None:
        out.print(_recall(facts["recall"]))
    out.print(f"Written to {facts['output']}", markup=False, highlight=False, soft_wrap=True)


def _summary(facts: Mapping[str, Any]) -> list[str]:
    figures, origin, head, run = (facts[name] for name in ("figures", "origin", "head", "run"))
    sizes = figures["sizes"]
    done = len(origin["history"])
    lines = [
        f"{figures['clusters']:,} clusters of {figures['vocab_size']:,} ids from {head['name']} "
        f"({head['rows']:,} x {head['width']:,} {head['dtype']}{', tied' if head['tied'] else ''}; "
        f"{head['padded']:,} padded rows left out, {figures['zero_rows']:,} zero rows)",
        f"mean cosine {figures['mean_cosine']:.4f} after {done} iterations"
        f"{' (converged)' if origin['converged'] else ''}",
        f"sizes {sizes['min']:,.0f} / {sizes['median']:,.0f} / {sizes['max']:,.0f} (least, median, largest); "
        f"balance {figures['balance']:.3f} (1 = all equal); {origin['refilled']:,} dead clusters refilled",
    ]
    memory = "" if run["peak_rss_bytes"] is None else f", {run['peak_rss_bytes'] / 2**30:.2f} GiB at most"
    lines.append(f"took {run['seconds']:.0f} s{memory}")
    return lines


def large_cluster(figures: Mapping[str, Any]) -> str | None:
    """A warning if one cluster holds more than a quarter of the vocabulary, else None."""
    share = figures["sizes"]["max"] / figures["vocab_size"]
    if share <= _LARGE:
        return None
    return (
        f"Warning: the largest cluster holds {share:.0%} of the ids. A router that opens it scores most of the "
        "vocabulary and saves little. Try more clusters (--clusters), or another --seed; rows of "
        "an untrained or tiny model may have no clusters to find."
    )


def _recall(recall: Mapping[str, Any]) -> DataTable:
    by_place = {(row["ranking"], row["m"]): row for row in recall["rows"]}
    names = list(dict.fromkeys(row["ranking"] for row in recall["rows"]))
    titles = {"logit": "logit", "mass": "mass", "centroid": "c·h"}
    rows = []
    for m in dict.fromkeys(row["m"] for row in recall["rows"]):
        found = [by_place[name, m] for name in names]
        cells = [(f"{one['recall']:.1%}", f"{one['mass']:.1%}", f"{one['tokens']:,.0f}") for one in found]
        rows.append([f"{m:,}", *(cell for three in cells for cell in three)])
    heads = [f"{titles[name]}: {figure}" for name in names for figure in ("recall", "mass", "tokens")]
    return DataTable(f"Recall over {recall['contexts']:,} contexts", ["m", *heads], rows, _RECALL_NOTE)
