"""The comparison of draft heads as a table: means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.console import markdown_table

COLUMNS = ("draft head", "setting", "tokens scored", "accepted length", "share of full")
FULL = "full head"


def summarise(by_seed: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method and setting.

    Args:
        by_seed: seed -> results in one order, each with ``method``, ``setting``, ``scored``,
            ``accepted_length``, ``identical``, ``prompts``; the full head is among them.

    Returns:
        rows with ``scored`` (mean), ``accepted_length`` and ``share_of_full`` (of the same seed's full head):
        ``mean`` and ``deviation`` (sample standard deviation; None of one seed), and the values by seed.
    """
    full = {
        seed: next(float(one["accepted_length"]) for one in results if one["method"] == FULL)
        for seed, results in by_seed.items()
    }
    rows = []
    for places in zip(*by_seed.values()):
        lengths = {seed: float(one["accepted_length"]) for seed, one in zip(by_seed, places)}
        shares = {seed: length / full[seed] for seed, length in lengths.items()}
        rows.append(
            {
                "method": places[0]["method"],
                "setting": places[0]["setting"],
                "scored": statistics.fmean(float(one["scored"]) for one in places),
                "accepted_length": _spread(lengths),
                "share_of_full": _spread(shares),
                "identical": sum(int(one["identical"]) for one in places),
                "outputs": sum(int(one["prompts"]) for one in places),
            }
        )
    return rows


def _spread(values: Mapping[int, float]) -> dict[str, Any]:
    found = list(values.values())
    deviation = statistics.stdev(found) if len(found) > 1 else None
    return {"mean": statistics.fmean(found), "deviation": deviation, "by_seed": dict(values)}


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of :func:`summarise` for people, in the order of :data:`COLUMNS`."""
    length, share = row["accepted_length"], row["share_of_full"]
    return (
        str(row["method"]),
        str(row["setting"]),
        f"{row['scored']:,.0f}",
        f"{length['mean']:.3f}" + ("" if length["deviation"] is None else f" ± {length['deviation']:.3f}"),
        f"{share['mean']:.1%}" + ("" if share["deviation"] is None else f" ± {share['deviation']:.1%}"),
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for a document."""
    return "\n".join(markdown_table(COLUMNS, map(cells, rows), text=2)) + "\n"
