"""Tables of the results of ``bench_kernels``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vocabforge.core.console import DataTable

Row = Mapping[str, Any]
_CEILINGS = {
    "copy_gb_per_s": ("copy, read and written", "GB/s"),
    "bf16_matmul_tflop_per_s": ("bf16 product", "TFLOP/s"),
    "graph_node_us": ("smallest kernel", "us"),
}


def tables(result: Row) -> list[DataTable]:
    """Return the tables of a ``bench_kernels`` result, for the measured parts only."""
    ceilings = [(name, f"{result['ceilings'][key]:,.2f}", unit) for key, (name, unit) in _CEILINGS.items()]
    found = [DataTable("Ceilings", ("ceiling<", "measured", "unit"), ceilings)]
    makers = {"heads": _heads, "cycle": _cycle, "ops": _ops}
    for part, make in makers.items():
        if rows := list(result["parts"].get(part, {}).values()):
            found.append(make(rows))
    left = [(part, name, why) for part, names in result["open"].items() for name, why in names.items()]
    return [*found, DataTable("Not measured", ("part<", "figure<", "why<"), left)] if left else found


def markdown(result: Row) -> str:
    """Format the tables with titles, preceded by the reason if they do not represent a GPU."""
    remark = [f"**{result['not_real']}.**\n"] if result.get("not_real") else []
    sections = ["\n".join([f"## {one.title}", "", *one.markdown(), ""]) for one in tables(result)]
    return "\n".join([*remark, *sections])


def _timed(row: Row, digits: int) -> list[object]:
    """Return the columns us, 10-90%, calls, floor and share, or the problem of a wrong result."""
    if row["problems"]:
        return [
            "wrong: " + "; ".join(f"{name}: {text}" for name, text in row["problems"].items()),
            *[None] * 4,
        ]
    timing = row["timing"]
    return [
        f"{timing['us']:.{digits}f}" + (" (no graph)" if timing["method"] == "events" else ""),
        f"{timing['low_us']:.{digits}f}-{timing['high_us']:.{digits}f}",
        f"{row['eager']['us']:.{digits}f}",
        f"{row['floor_us']:.{digits}f} {row['bound']}",
        f"{row['share']:.0%}" + ("" if row["cold"] else " (in cache)"),
    ]


_TIMED = ("us", "10-90%", "calls, us", "floor, us", "share")


def _ops(rows: Sequence[Row]) -> DataTable:
    def cells(row: Row) -> list[object]:
        ways = "; ".join(
            f"{way} {one['ratio']:.2f}" if "ratio" in one else f"{way} -"
            for way, one in row.get("baselines", {}).items()
        )
        rate = None if row["problems"] else f"{row['gb_per_s']:,.0f}"
        return [row["case"], *_timed(row, 2), rate, ways]

    return DataTable(
        "Ops", ("case<", *_TIMED, "GB/s", "other ways (times ours)"), [cells(row) for row in rows]
    )


def _heads(rows: Sequence[Row]) -> DataTable:
    """Compare each head with the static head of the same V and N."""

    def place(row: Row) -> tuple[int, int]:
        return row["sizes"]["V"], row["sizes"]["N"]

    static = {
        place(row): row["timing"]["us"] for row in rows if row["op"] == "head static" and "timing" in row
    }

    def cells(row: Row) -> list[object]:
        base = None if row["problems"] else static.get(place(row))
        share = None if base is None else f"{row['timing']['us'] / base:.2f}"
        return [row["case"].partition(" V=")[0], *place(row), *_timed(row, 1), share]

    return DataTable("Draft heads", ("head<", "V", "N", *_TIMED, "of static"), [cells(row) for row in rows])


def _cycle(rows: Sequence[Row]) -> DataTable:
    def cells(row: Row) -> list[object]:
        times = [f"{row[key]:.3f}" for key in ("ms", "without_ms", "floor_ms")]
        return [row["name"], *times, f"{row['share']:.0%}", f"{row['bytes'] / 1e6:,.0f}"]

    columns = ("cycle<", "ms", "without graphs, ms", "roofline, ms", "share", "MB")
    return DataTable("Cycle (shapes are real, weights random)", columns, [cells(row) for row in rows])
