"""Performance goals for each regime: the table of docs/performance.md, filled in by a result of ``bench_kernels``.

The best possible values are arithmetic for two 8B shapes on a GPU of 4.3 TB/s with 1.25 us for each dependent graph
node: bytes that must be read over that rate, plus the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabforge.core.console import DataTable

SHORTLIST = 2048  # k in the goals for ``indexed_logits``

Row = Mapping[str, Any]
Figures = Callable[[Row], Sequence[float]]  # result of ``bench_kernels`` -> figures of a regime


@dataclass(frozen=True)
class Goal:
    """Goal for a figure in a regime.

    Attributes:
        figure, regime: labels in the table.
        best: best possible value, computed from bytes and nodes.
        expected: estimate from reading the code, not a measurement.
        wanted: minimum if ``rising``, else maximum; None if the goal of similar regimes exceeds the best.
    """

    figure: str
    regime: str
    best: str
    expected: str
    wanted: float | None
    figures: Figures
    rising: bool = True

    def allows(self, value: float) -> bool:
        """Return whether a figure meets the goal."""
        return self.wanted is None or (value >= self.wanted if self.rising else value <= self.wanted)


def _heads(*rows: int, ranker: bool = False, alike: bool = True) -> Figures:
    """Return the best time of dynamic (or ranker) heads relative to the faster static head, for each V and N."""

    def figures(result: Row) -> list[float]:
        times: dict[tuple[int, int], dict[bool, float]] = {}
        for row in result["parts"].get("heads", {}).values():
            sizes, static = row["sizes"], row["op"] == "head static"
            wanted = sizes["dynamic"] and not sizes["fp8"] and sizes["alike"] == alike
            wanted = wanted and (row["op"] == "head ranker" or not ranker)
            if "timing" not in row or sizes["N"] not in rows or not (static or wanted):
                continue
            place = times.setdefault((sizes["V"], sizes["N"]), {})
            place[static] = min(place.get(static, float("inf")), row["timing"]["us"])
        return [one[False] / one[True] for one in times.values() if len(one) == 2]

    return figures


def _indexed(lists: str, *rows: int, gather: bool = False) -> Figures:
    """Return the share of the copy's rate, or a gather's time over the op's; ``lists``: the end of the cases' names."""

    def figures(result: Row) -> list[float]:
        return [
            float(row["baselines"]["gather + matmul"].get("ratio", float("nan")) if gather else row["share"])
            for row in result["parts"].get("ops", {}).values()
            if row["op"] == "indexed_logits"
            and "timing" in row
            and row["sizes"]["k"] == SHORTLIST
            and row["sizes"]["N"] in rows
            and row["case"].endswith(lists)
        ]

    return figures


def _cycles(*, plain: bool) -> Figures:
    def figures(result: Row) -> list[float]:
        rows = result["parts"].get("cycle", {}).values()
        return [row["share"] for row in rows if (row["nodes"] == 1) == plain]

    return figures


_DYNAMIC, _RANKER = (f"best {kind} head, time over static 32k" for kind in ("dynamic", "ranker"))
_COPIED, _GATHER = "`indexed_logits`, k = 2,048, share of the copy's rate", "gather + matmul over it, time"
_PLAIN, _CYCLE = (f"{kind}, share of the byte roofline" for kind in ("plain decoding", "cycle of 60 nodes"))
_ALIKE, _OWN = " shared", " own"
GOALS: tuple[Goal, ...] = (
    Goal(_DYNAMIC, "N = 1, 10", "0.13", "0.38 to 0.42 (context 3,000)", 0.45, _heads(1, 10), rising=False),
    Goal(_DYNAMIC, "N = 60", "0.16", "0.5 to 0.6 (context 3,000)", 0.45, _heads(60), rising=False),
    Goal(_RANKER, "N = 1", "0.32 to 0.36", "0.56 (d/16, k = 512)", 0.45, _heads(1, ranker=True), rising=False),
    Goal(_RANKER, "N = 10, rows alike", "0.32 to 0.36", "0.68", 0.45, _heads(10, ranker=True), rising=False),
    Goal(_RANKER, "N = 60, rows alike", "0.39 to 0.43", "0.96", 0.60, _heads(60, ranker=True), rising=False),
    Goal(_RANKER, "N = 10, rows unlike", "0.45 to 0.49", "none", 0.60,
         _heads(10, ranker=True, alike=False), rising=False),
    Goal(_RANKER, "N = 60, rows unlike", "1.10 to 1.16", "none", None,
         _heads(60, ranker=True, alike=False), rising=False),
    Goal(_COPIED, "N = 1", "0.76", "0.54", 0.70, _indexed(_OWN, 1)),
    Goal(_COPIED, "N = 10, 60, one list", "0.61 to 0.63", "0.29 (N = 10)", 0.55, _indexed(_ALIKE, 10, 60)),
    Goal(_COPIED, "N = 10, 60, own lists", "0.94 to 0.98", "0.76, 0.72", 0.80, _indexed(_OWN, 10, 60)),
    Goal(_GATHER, "N = 1", "3.00", "2.6", 2.5, _indexed(_OWN, 1, gather=True)),
    Goal(_GATHER, "N = 10, 60, one list", "13 to 71", "7.5 (N = 10)", 6.0, _indexed(_ALIKE, 10, 60, gather=True)),
    Goal(_GATHER, "N = 10, 60, own lists", "3.02 to 4.05", "2.8 to 3.6", 2.5, _indexed(_OWN, 10, 60, gather=True)),
    Goal(_PLAIN, "8B shapes", "0.94 to 0.95", "0.74, 0.72", 0.90, _cycles(plain=True)),
    Goal(_CYCLE, "8B shapes, five heads", "0.94 to 0.95", "0.65 to 0.67, 0.03 more with the drafter on the ops",
         0.85, _cycles(plain=False)),
)  # fmt: skip


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def goals_table(result: Row | None = None) -> DataTable:
    """Return all goals; with a result, also the measured values and whether they meet the goals."""
    rows: list[list[object]] = []
    for goal in GOALS:
        wanted = f"at {'least' if goal.rising else 'most'} {goal.wanted:.2f}" if goal.wanted else "no goal"
        values = [] if result is None else goal.figures(result)
        measured = "open"
        if values:
            met = "" if goal.wanted is None else ": yes" if all(map(goal.allows, values)) else ": no"
            measured = _range(values) + met
        rows.append([goal.figure, goal.regime, goal.best, goal.expected, wanted, measured])
    columns = ("figure<", "regime<", "best possible", "estimate", "wanted", "measured")
    return DataTable("Goals", columns, rows)
