"""What ``cluster-vocab`` prints: figures, sizes, recall and a few clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .app import stdout_console

_BAR = 32
_LARGE = 0.25  # share of the vocabulary in one cluster from which a router can save little


def print_clusters(facts: Mapping[str, Any]) -> None:
    """Tables on stdout from the facts that ``--json`` prints."""
    out = stdout_console(highlight=True)
    for line in _summary(facts):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    if (warning := large_cluster(facts["figures"])) is not None:
        out.print(warning, style="bold", markup=False, highlight=False, soft_wrap=True)
    out.print(_histogram(facts["figures"]))
    out.print(_examples(facts["examples"]))
    if facts["recall"] is not None:
        out.print(_recall(facts["recall"]))
        out.print(
            "The first m clusters by their best logit (recall is 1 by construction), by their probability mass, "
            "and by centroid · hidden state (c·h). recall: the target's argmax is in them; "
            "mass: their probability; tokens: their size. Means over contexts.",
            style="dim",
        )
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
    """A warning where one cluster holds more than a quarter of the vocabulary, else None."""
    share = figures["sizes"]["max"] / figures["vocab_size"]
    if share <= _LARGE:
        return None
    return (
        f"Warning: the largest cluster holds {share:.0%} of the ids. A router that opens it scores most of the "
        "vocabulary and saves little. Try more clusters (--clusters), or several starts (--restarts 5); rows of "
        "an untrained or tiny model may have no clusters to find."
    )


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, collapse_padding=True
    )


def _histogram(figures: Mapping[str, Any]) -> Table:
    table = _table("Clusters by size")
    for name in ("ids", "clusters", "of vocabulary"):
        table.add_column(name, justify="right")
    table.add_column("")
    most = max(row["clusters"] for row in figures["histogram"])
    for row in figures["histogram"]:
        ids = f"{row['from']:,}" if row["from"] == row["to"] else f"{row['from']:,} – {row['to']:,}"
        bar = "█" * round(_BAR * row["clusters"] / most) or ("▏" if row["clusters"] else "")
        table.add_row(ids, f"{row['clusters']:,}", f"{row['ids'] / figures['vocab_size']:.1%}", bar)
    return table


def _examples(rows: list[dict[str, Any]]) -> Table:
    table = _table("A few clusters")
    table.add_column("cluster", justify="right")
    table.add_column("chosen as")
    table.add_column("ids", justify="right")
    table.add_column("cosine", justify="right")
    table.add_column("lowest ids", overflow="fold")
    for row in rows:
        more = " …" if row["size"] > len(row["tokens"]) else ""
        shown = Text("  ".join(row["tokens"]) + more)  # Text: a token may look like markup
        table.add_row(str(row["cluster"]), row["why"], f"{row['size']:,}", f"{row['cosine']:.3f}", shown)
    return table


def _recall(recall: Mapping[str, Any]) -> Table:
    table = _table(f"Recall over {recall['contexts']:,} contexts")
    table.add_column("m", justify="right")
    names = list(dict.fromkeys(row["ranking"] for row in recall["rows"]))
    titles = {"logit": "logit", "mass": "mass", "centroid": "c·h"}
    for name in names:
        for figure in ("recall", "mass", "tokens"):
            table.add_column(f"{titles[name]}:\n{figure}", justify="right")
    for m in dict.fromkeys(row["m"] for row in recall["rows"]):
        cells = []
        for name in names:
            row = next(one for one in recall["rows"] if (one["ranking"], one["m"]) == (name, m))
            cells += [f"{row['recall']:.1%}", f"{row['mass']:.1%}", f"{row['tokens']:,.0f}"]
        table.add_row(f"{m:,}", *cells)
    return table
