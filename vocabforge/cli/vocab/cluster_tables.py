"""What ``cluster-vocab`` prints: figures, sizes and a few clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.console import DataTable
from ..app import stdout_console

_LARGE = 0.25  # share of the vocabulary in one cluster from which a router can save little


def print_clusters(facts: Mapping[str, Any]) -> None:
    """Tables on stdout from the facts that ``--json`` prints."""
    out = stdout_console(highlight=True)
    for line in _summary(facts):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if (warning := large_cluster(facts["figures"])) is not None:
        out.print(warning, style="bold", markup=False, highlight=False, soft_wrap=True)
    out.print(_examples(facts["examples"]))
    out.print(f"Written to {facts['output']}", markup=False, highlight=False, soft_wrap=True)


def _summary(facts: Mapping[str, Any]) -> list[str]:
    figures, origin, head, run = (facts[name] for name in ("figures", "origin", "head", "run"))
    sizes, cosine = figures["sizes"], figures["cluster_cosine"]
    done = len(origin["history"])
    lines = [
        f"{figures['clusters']:,} clusters of {figures['vocab_size']:,} ids from {head['name']} "
        f"({head['rows']:,} x {head['width']:,} {head['dtype']}{', tied' if head['tied'] else ''}; "
        f"{head['padded']:,} padded rows left out, {figures['zero_rows']:,} zero rows)",
        f"mean cosine {figures['mean_cosine']:.4f} after {done} iterations"
        f"{' (converged)' if origin['converged'] else ''}, backend {origin['backend']}; by cluster "
        f"{cosine['min']:.3f} / {cosine['median']:.3f} / {cosine['max']:.3f} (least, median, largest)",
        f"sizes {sizes['min']:,.0f} / {sizes['median']:,.0f} / {sizes['max']:,.0f}; the 10 largest hold "
        f"{figures['share_of_largest_10']:.1%} of the vocabulary; {figures['singletons']:,} of one id; "
        f"balance {figures['balance']:.3f} (1 = all equal), variation {figures['variation']:.2f}; "
        f"{origin['refilled']:,} dead clusters refilled",
    ]
    if origin["restarts"] > 1:
        shown = ", ".join(f"{value:.4f}" for value in origin["objectives"])
        lines.append(f"mean cosine of the runs: {shown}; run {origin['run'] + 1} kept")
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
        "vocabulary and saves little. Try more clusters (--clusters), or several starts (--restarts 5); rows of "
        "an untrained or tiny model may have no clusters to find."
    )


def _examples(rows: list[dict[str, Any]]) -> DataTable:
    shown = [
        [
            str(row["cluster"]),
            row["why"],
            f"{row['size']:,}",
            f"{row['cosine']:.3f}",
            "  ".join(row["tokens"]) + (" …" if row["size"] > len(row["tokens"]) else ""),
        ]
        for row in rows
    ]
    return DataTable("A few clusters", ["cluster", "chosen as<", "ids", "cosine", "lowest ids<"], shown)
