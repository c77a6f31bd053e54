"""Performance goals for each regime, with the limits set by bytes moved and dependent graph nodes.

docs/performance.md contains this table. A test checks that no goal exceeds its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cases.heads import BenchHead, head_cost, requests_of, text_tokens
from bench.cases.types import LLAMA3_8B, QWEN3_8B, ModelShape

from vocabforge.core.console import DataTable

# GPU assumed by the estimates: bytes/s, and seconds of overhead per dependent node.
COPY, NODE = 4.3e12, 1.25e-6
SHORTLIST = 2048  # k in the goals for ``indexed_logits``
_SHAPES = (LLAMA3_8B, QWEN3_8B)

Row = Mapping[str, Any]
Floor = Callable[[ModelShape, int], float]  # shape, N -> best possible value
Found = Callable[[Row], Sequence[float]]  # result of ``bench_kernels`` -> figures of a regime


@dataclass(frozen=True)
class Goal:
    """Goal for a figure in a regime.

    Attributes:
        figure, regime: labels in the table.
        rows: N of the regime.
        wanted: minimum if ``rising``, else maximum; None if the goal of similar regimes exceeds the floor.
        expected: estimate from reading the code, not a measurement.
    """

    figure: str
    regime: str
    rows: tuple[int, ...]
    wanted: float | None
    expected: str
    floor: Floor
    found: Found
    rising: bool = True

    def floors(self) -> list[float]:
        """Return the best possible value for each shape and N of the regime, on the assumed GPU."""
        return [self.floor(shape, rows) for shape in _SHAPES for rows in self.rows]

    def allows(self, value: float) -> bool:
        """Return whether a figure meets the goal."""
        return self.wanted is None or (value >= self.wanted if self.rising else value <= self.wanted)


def _seconds(moved: float, nodes: int) -> float:
    return moved / COPY + nodes * NODE


def _listed(shape: ModelShape, rows: int, k: int, own: float) -> float:
    """Return the expected distinct LM-head rows in N lists of k, if a share ``own`` of each is random."""
    drawn = shape.vocab * (1.0 - (1.0 - k * own / shape.vocab) ** rows)
    return drawn + k * (1.0 - own)


def _static(shape: ModelShape) -> float:
    return _seconds(head_cost(shape, BenchHead("static", ""))[0], 2)


def _context_share(shape: ModelShape, rows: int) -> float:
    """Estimate logits and top-k over the core and each request's text."""
    listed = shape.context_tokens + (requests_of(rows) - 1) * text_tokens(shape)
    return _seconds(2.0 * listed * shape.hidden, 2) / _static(shape)


def _ranker_share(own: bool) -> Floor:
    """Estimate three nodes: projection, scores with selection, and logits with top-k."""

    def floor(shape: ModelShape, rows: int) -> float:
        k, lists = min(shape.shortlists), rows if own else requests_of(rows)
        scorer = shape.ranks[-1] * (shape.vocab + shape.hidden)
        moved = 2.0 * (scorer + _listed(shape, lists, k, 1.0) * shape.hidden)
        return _seconds(moved, 3) / _static(shape)

    return floor


def _indexed(shape: ModelShape, rows: int, own: float) -> tuple[float, int]:
    """Return the bytes of the distinct rows and the number of nodes; several lists are merged first."""
    listed = _listed(shape, rows, SHORTLIST, own)
    return 2.0 * shape.hidden * (listed + rows) + 8.0 * rows * SHORTLIST, min(rows, 2)


def _copy_share(own: float) -> Floor:
    def floor(shape: ModelShape, rows: int) -> float:
        moved, nodes = _indexed(shape, rows, own)
        return moved / COPY / _seconds(moved, nodes)

    return floor


def _over_gather(own: float) -> Floor:
    """Compare with a gather, which writes and rereads all listed rows: at most 3x the bytes if all differ."""

    def floor(shape: ModelShape, rows: int) -> float:
        moved, nodes = _indexed(shape, rows, own)
        copied = 2.0 * rows * SHORTLIST * 2.0 * shape.hidden
        return _seconds(moved + copied, 3) / _seconds(moved, nodes)

    return floor


def _whole(nodes: int) -> Floor:
    """Return the share of the byte roofline for layers with ``nodes`` nodes each."""

    def floor(shape: ModelShape, rows: int) -> float:
        sizes = shape.hidden * (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
        layer = sizes + 3 * shape.hidden * shape.intermediate
        read = 2.0 * (shape.layers * layer + shape.vocab * shape.hidden) / COPY
        return read / (read + nodes * shape.layers * NODE)

    return floor


def _heads_found(rows: tuple[int, ...], wanted: Callable[[Row], bool]) -> Found:
    """Return the best time of the wanted heads relative to the faster static head, for each V and N."""

    def found(result: Row) -> list[float]:
        times: dict[tuple[int, int], dict[bool, float]] = {}
        for row in result["parts"].get("heads", {}).values():
            sizes = row["sizes"]
            static = row["op"] == "head static"
            if "timing" not in row or sizes["N"] not in rows or not (static or wanted(row)):
                continue
            place = times.setdefault((sizes["V"], sizes["N"]), {})
            place[static] = min(place.get(static, float("inf")), row["timing"]["us"])
        return [one[False] / one[True] for one in times.values() if len(one) == 2]

    return found


def _dynamic(row: Row) -> bool:
    return bool(row["sizes"]["dynamic"] and row["sizes"]["alike"] and not row["sizes"]["fp8"])


def _ranker(alike: bool) -> Callable[[Row], bool]:
    def wanted(row: Row) -> bool:
        sizes = row["sizes"]
        return row["op"] == "head ranker" and not sizes["fp8"] and bool(sizes["alike"]) == alike

    return wanted


def _ops_found(rows: tuple[int, ...], kinds: tuple[str, ...], value: Callable[[Row], float]) -> Found:
    def found(result: Row) -> list[float]:
        return [
            value(row)
            for row in result["parts"].get("ops", {}).values()
            if row["op"] == "indexed_logits"
            and "timing" in row
            and row["sizes"]["k"] == SHORTLIST
            and row["sizes"]["N"] in rows
            and row["case"].endswith(kinds)
        ]

    return found


def _gather_ratio(row: Row) -> float:
    return float(row["baselines"]["gather + matmul"].get("ratio", float("nan")))


def _cycles_found(plain: bool) -> Found:
    def found(result: Row) -> list[float]:
        rows = result["parts"].get("cycle", {}).values()
        return [row["share"] for row in rows if (row["nodes"] == 1) == plain]

    return found


_DYNAMIC, _RANKER = (f"best {kind} head, time over static 32k" for kind in ("dynamic", "ranker"))
_COPIED, _GATHER = "`indexed_logits`, k = 2,048, share of the copy's rate", "gather + matmul over it, time"
_ALIKE, _OWN = (" shared",), (" own",)  # suffixes of case names
_share: Callable[[Row], float] = lambda row: float(row["share"])  # noqa: E731

GOALS: tuple[Goal, ...] = (
    Goal(_DYNAMIC, "N = 1, 10", (1, 10), 0.45, "0.38 to 0.42 (context 3,000)", _context_share,
         _heads_found((1, 10), _dynamic), rising=False),
    Goal(_DYNAMIC, "N = 60", (60,), 0.45, "0.5 to 0.6 (context 3,000)", _context_share,
         _heads_found((60,), _dynamic), rising=False),
    Goal(_RANKER, "N = 1", (1,), 0.45, "0.56 (d/16, k = 512)", _ranker_share(False),
         _heads_found((1,), _ranker(True)), rising=False),
    Goal(_RANKER, "N = 10, rows alike", (10,), 0.45, "0.68", _ranker_share(False),
         _heads_found((10,), _ranker(True)), rising=False),
    Goal(_RANKER, "N = 60, rows alike", (60,), 0.60, "0.96", _ranker_share(False),
         _heads_found((60,), _ranker(True)), rising=False),
    Goal(_RANKER, "N = 10, rows unlike", (10,), 0.60, "none", _ranker_share(True),
         _heads_found((10,), _ranker(False)), rising=False),
    Goal(_RANKER, "N = 60, rows unlike", (60,), None, "none", _ranker_share(True),
         _heads_found((60,), _ranker(False)), rising=False),
    Goal(_COPIED, "N = 1", (1,), 0.70, "0.54", _copy_share(1.0), _ops_found((1,), _OWN, _share)),
    Goal(_COPIED, "N = 10, 60, one list", (10, 60), 0.55, "0.29 (N = 10)", _copy_share(0.0),
         _ops_found((10, 60), _ALIKE, _share)),
    Goal(_COPIED, "N = 10, 60, own lists", (10, 60), 0.80, "0.76, 0.72", _copy_share(1.0),
         _ops_found((10, 60), _OWN, _share)),
    Goal(_GATHER, "N = 1", (1,), 2.5, "2.6", _over_gather(1.0), _ops_found((1,), _OWN, _gather_ratio)),
    Goal(_GATHER, "N = 10, 60, one list", (10, 60), 6.0, "7.5 (N = 10)", _over_gather(0.0),
         _ops_found((10, 60), _ALIKE, _gather_ratio)),
    Goal(_GATHER, "N = 10, 60, own lists", (10, 60), 2.5, "2.8 to 3.6", _over_gather(1.0),
         _ops_found((10, 60), _OWN, _gather_ratio)),
    Goal("plain decoding, share of the byte roofline", "8B shapes", (1,), 0.90, "0.74, 0.72", _whole(5),
         _cycles_found(True)),
    Goal("cycle of 60 nodes, share of the byte roofline", "8B shapes, five heads", (1,), 0.85,
         "0.65 to 0.67, 0.03 more with the drafter on the ops", _whole(5), _cycles_found(False)),
)  # fmt: skip


def _range(values: Sequence[float]) -> str:
    ends = [f"{end(values):.2f}" if end(values) < 10 else f"{end(values):.0f}" for end in (min, max)]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def goals_table(result: Row | None = None) -> DataTable:
    """Return all goals; with a result, also the measured values and whether they meet the goals."""
    rows: list[list[object]] = []
    for goal in GOALS:
        wanted = f"at {'least' if goal.rising else 'most'} {goal.wanted:.2f}" if goal.wanted else "no goal"
        values = [] if result is None else goal.found(result)
        measured = "open"
        if values:
            met = "" if goal.wanted is None else ": yes" if all(map(goal.allows, values)) else ": no"
            measured = _range(values) + met
        rows.append([goal.figure, goal.regime, _range(goal.floors()), goal.expected, wanted, measured])
    columns = ("figure<", "regime<", "best possible", "estimate", "wanted", "measured")
    return DataTable("Goals", columns, rows)
