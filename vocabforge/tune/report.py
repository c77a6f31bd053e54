"""Tables and sentences of a tuning run for a terminal."""

from __future__ import annotations

from ..core.console import DataTable
from ..decode.build.recipe import PLAIN
from ..evaluate.reports.tables import figure_cell, number
from .results import BatchRow, CandidateRow, Recommendation, TuneResults

_SHOWN = 12  # maximum number of methods; tune.json has all


def methods_table(results: TuneResults, batch: int) -> DataTable:
    """Return the best methods of a batch size, by prompts measured and speed-up, plain decoding last."""
    rows = [(row, found) for row in results.candidates if (found := row.at(batch)) is not None]
    methods: list[tuple[CandidateRow, BatchRow]] = sorted(
        rows, key=lambda pair: (-pair[0].groups, -(pair[1].speedup.value or 0.0))
    )
    cells: list[list[object]] = [
        [
            row.name,
            figure_cell(found.speedup),
            number(found.tokens_per_s.value, 1),
            None if row.accepted is None else figure_cell(row.accepted),
            number(None if found.cycle is None else found.cycle * 1e3),
            row.groups,
        ]
        for row, found in methods[:_SHOWN]
    ]
    cells.append([PLAIN, "1.00", number(results.plain[str(batch)], 1), "1.00", None, None])
    more = "" if len(methods) <= _SHOWN else f" {len(methods) - _SHOWN} more are in tune.json."
    return DataTable(
        f"Speed-up over plain decoding{_side_by_side(results, batch)}",
        ("method<", "speed-up", "tokens/s", "tokens a cycle", "cycle, ms", "groups"),
        cells,
        "Each method is timed in turns with plain decoding. Fewer groups of prompts: the search stopped there."
        + more,
    )


def headline(results: TuneResults, one: Recommendation) -> str:
    """Return the recommendation in a sentence."""
    where = _side_by_side(results, one.batch)
    if one.method == PLAIN:
        return f"Recommended{where}: plain decoding. {' '.join(one.why)}"
    rate = figure_cell(one.speedup)
    interval = f" [{rate.under}]" if rate.under else ""
    return (
        f"Recommended{where}: {one.method}, {rate.text}{interval} times plain decoding. {' '.join(one.why)}"
    )


def _side_by_side(results: TuneResults, batch: int) -> str:
    return f", {batch} side by side" if len(results.recommendations) > 1 else ""
