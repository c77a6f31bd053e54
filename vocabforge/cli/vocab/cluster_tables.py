"""What ``cluster-vocab`` prints: figures and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..app import stdout_console

_LARGE = 0.25  # share of the vocabulary in one cluster from which a router can save little


def print_clusters(facts: Mapping[str, Any]) -> None:
    """Tables on stdout from the facts that ``--json`` prints."""
    out = stdout_console(highlight=True)
    for line in _summary(facts):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if (warning := large_cluster(facts["figures"])) is not None:
        out.print(warning, style="bold", markup=False, highlight=False, soft_wrap=True)
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
