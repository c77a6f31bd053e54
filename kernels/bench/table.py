"""Tables of the benchmark's figures and of what the device could reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vocabforge.core.console import DataTable

Row = Mapping[str, Any]
_COLUMNS = {
    "heads": ("head<", "us", "10-90%", "floor, us", "share", "of static"),
    "cycle": ("cycle (shapes are real, weights random)<", "ms", "floor, ms", "share"),
    "ops": ("case<", "us", "10-90%", "floor, us", "share", "GB/s", "PyTorch"),
}


def markdown(rows: Mapping[str, Mapping[str, Row]]) -> str:
    """Format the rows of each part by name, beside the ``ceilings`` if they were measured."""
    ceilings: Row | None = rows.get("ceilings", {}).get("ceilings")
    lines = ["", "## Ceilings", "", "not measured"]
    if ceilings is not None and "problem" in ceilings:
        ceilings = None
    if ceilings is not None:
        lines[-1] = (
            f"copy, read and written: {ceilings['copy'] / 1e9:,.2f} GB/s; bf16 product: "
            f"{ceilings['product'] / 1e12:,.2f} TFLOP/s; smallest kernel: {ceilings['node_us']:.2f} us"
        )
    for part, columns in _COLUMNS.items():
        if some := rows.get(part):
            cells = [[name, *_cells(part, name, row, some, ceilings)] for name, row in some.items()]
            lines += ["", f"## {part.capitalize()}", "", *DataTable("", columns, cells).markdown()]
    return "\n".join([*lines, ""])


def _cells(part: str, name: str, row: Row, rows: Mapping[str, Row], ceilings: Row | None) -> Sequence[object]:
    if "problem" in row:
        return [f"wrong: {row['problem'].splitlines()[0]}", *[None] * (len(_COLUMNS[part]) - 2)]
    floor, share = None, None
    if ceilings is not None:
        by_bytes, by_operations = row["bytes"] / ceilings["copy"], row["flops"] / ceilings["product"]
        floor = max(by_bytes, by_operations) * 1e6
        share = f"{floor / row['us']:.0%}"
    if part == "cycle":
        values = (row["us"], floor)
        return [*(None if us is None else f"{us / 1e3:.3f}" for us in values), share]
    timed = [
        f"{row['us']:.2f}",
        f"{row['low_us']:.2f}-{row['high_us']:.2f}",
        None if floor is None else f"{floor:.2f}",
        share and share + ("" if row["cold"] else " (in cache)"),
    ]
    if part == "heads":
        static = _static(name, rows)
        return [*timed, None if static is None else f"{row['us'] / static:.2f}"]
    plain = row["plain"]
    times = plain if isinstance(plain, str) else f"{plain / row['us']:.2f}"
    return [*timed, f"{row['bytes'] / row['us'] / 1e3:,.0f}", times]


def _static(name: str, rows: Mapping[str, Row]) -> float | None:
    """Return the microseconds of the static head at the same V and N."""
    sizes = name.partition(" V=")[2]
    for other, row in rows.items():
        if other.startswith("head static") and other.endswith(f" V={sizes}"):
            return row.get("us")
    return None
