"""The figures of ``bench kernels`` as Markdown tables, open ones named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...core.console import markdown_table

Row = Mapping[str, Any]


def ceilings_lines(ceilings: Mapping[str, Any]) -> list[str]:
    """What the device can do, in one sentence."""
    return [
        f"Copy {ceilings['copy_gb_per_s']:,.0f} GB/s (read and written), bf16 product "
        f"{ceilings['bf16_matmul_tflop_per_s']:,.1f} TFLOP/s, smallest kernel {ceilings['graph_node_us']:.2f} us."
    ]


def goal_lines(goals: Sequence[Row]) -> list[str]:
    """``goal, measured, reached or open``."""
    return markdown_table(
        ("goal", "where", "wanted", "measured", "state"),
        (
            (
                row["goal"],
                row["where"],
                f"{row['relation']} {row['bound']:.2f}",
                "-" if row["measured"] is None else f"{row['measured']:.3f} ({row['by']})",
                row["state"],
            )
            for row in goals
        ),
    )


def op_lines(rows: Iterable[Row]) -> list[str]:
    """Ops: times, floor, baselines."""
    columns = ("case", "us", "10-90%", "calls, us", "floor, us", "share", "GB/s", "other ways (times ours)")
    return markdown_table(columns, (_op_cells(row) for row in rows))


def _op_cells(row: Row) -> tuple[str, ...]:
    if row["problems"]:
        return (row["case"], "wrong", *["-"] * 5, "; ".join(f"{k}: {v}" for k, v in row["problems"].items()))
    timing = row["timing"]
    ways = "; ".join(f"{name} {_ratio(way)}" for name, way in row["baselines"].items())
    warm = "" if row["cold"] else " (in cache)"
    measured = "".join(f", {name} {value:.3f}" for name, value in row.get("measured", {}).items())
    return (
        row["case"] + measured,
        f"{timing['us']:.2f}" + ("" if timing["method"] != "events" else " (no graph)"),
        f"{timing['low_us']:.2f}-{timing['high_us']:.2f}",
        f"{row['eager']['us']:.2f}",
        f"{row['floor_us']:.2f} {row['bound']}",
        f"{row['share']:.0%}{warm}",
        f"{row['gb_per_s']:,.0f}",
        ways,
    )


def _ratio(way: Row) -> str:
    return f"{way['ratio']:.2f}" if "ratio" in way else "-"


def head_lines(rows: Sequence[Row]) -> list[str]:
    """Heads, each beside the static head of the same V and N."""
    static = {
        _place(row): row["timing"]["us"] for row in rows if row["op"] == "head static" and "timing" in row
    }
    columns = ("head", "V", "N", "us", "10-90%", "calls, us", "floor, us", "share", "of static")
    return markdown_table(columns, (_head_cells(row, static.get(_place(row))) for row in rows))


def _place(row: Row) -> tuple[int, int]:
    return row["sizes"]["V"], row["sizes"]["N"]


def _head_cells(row: Row, static: float | None) -> tuple[str, ...]:
    vocab, count = _place(row)
    label = row["case"].partition(" V=")[0]
    if row["problems"]:
        wrong = "; ".join(map(str, row["problems"].values()))
        return (f"{label}: {wrong}", f"{vocab:,}", str(count), "wrong", *["-"] * 5)
    timing = row["timing"]
    return (
        label,
        f"{vocab:,}",
        str(count),
        f"{timing['us']:.1f}" + ("" if timing["method"] != "events" else " (no graph)"),
        f"{timing['low_us']:.1f}-{timing['high_us']:.1f}",
        f"{row['eager']['us']:.1f}",
        f"{row['floor_us']:.1f}",
        f"{row['share']:.0%}",
        "-" if static is None else f"{timing['us'] / static:.2f}",
    )


def drafting_lines(rows: Iterable[Row]) -> list[str]:
    """Where drafting's time goes, a line a model and head."""
    parts = ("layer", "head", "softmax and top-k", "tree", "launch gaps")
    columns = ("drafting", "with graphs, us", "without, us", *(f"{part}, us (share)" for part in parts))

    def cells(row: Row) -> tuple[str, ...]:
        without = row["without_us"]
        shown = (f"{row['parts'][part]:.1f} ({row['parts'][part] / without:.0%})" for part in parts)
        return (row["name"], f"{row['with_us']:.1f}", f"{without:.1f}", *shown)

    return markdown_table(columns, map(cells, rows))


def cycle_lines(rows: Iterable[Row]) -> list[str]:
    """Cycles beside their roofline."""
    columns = ("what", "ms", "without graphs, ms", "roofline, ms", "share", "MB")

    def cells(row: Row) -> tuple[str, ...]:
        eager = row.get("without_ms")
        return (
            row["name"],
            f"{row['ms']:.3f}",
            "-" if eager is None else f"{eager:.3f}",
            f"{row['floor_ms']:.3f}",
            f"{row['share']:.0%}",
            f"{row['bytes'] / 1e6:,.0f}",
        )

    return markdown_table(columns, map(cells, rows))


def speed_lines(rows: Iterable[Row]) -> list[str]:
    """Tokens a second that follow for accepted lengths measured elsewhere."""
    columns = ("model", "accepted length", "measured where", "tokens/s that follow", "times plain")
    lines = [
        (
            row["model"],
            f"{one['accepted']:.2f}",
            one["source"],
            f"{one['tokens_per_s']:,.1f}",
            "-" if one["speedup"] is None else f"{one['speedup']:.2f}",
        )
        for row in rows
        for one in row.get("follows", ())
    ]
    return markdown_table(columns, lines)


def open_lines(open_figures: Mapping[str, Mapping[str, str]], *, brief: bool = False) -> list[str]:
    """Every figure that is open, and why; in brief how many."""
    lines: list[str] = []
    for part, names in open_figures.items():
        by_reason: dict[str, list[str]] = {}
        for name, why in names.items():
            by_reason.setdefault(why, []).append(name)
        for why, those in by_reason.items():
            lines.append(f"- {part}: {len(those)} open ({why})")
            lines += [] if brief else [f"  - {name}" for name in those]
    return lines or ["None."]


def markdown(result: Mapping[str, Any], *, brief: bool = False) -> str:
    """All tables of a result of ``bench_kernels``; in brief without the names of open figures."""
    parts = result["parts"]
    sections: list[tuple[str, list[str]]] = [("Goals", goal_lines(result["goals"]))]
    if result.get("ceilings"):
        sections.append(("Ceilings", ceilings_lines(result["ceilings"])))
    heads, ops = list(parts.get("heads", {}).values()), list(parts.get("ops", {}).values())
    cycle = list(parts.get("cycle", {}).values())
    sections += [
        ("Draft heads", head_lines(heads)),
        ("Drafting", drafting_lines(parts.get("drafting", {}).values())),
        ("Cycle (shapes are real, weights random)", cycle_lines(cycle)),
        (
            "Tokens a second that follow (shapes real, weights random, accepted lengths from elsewhere)",
            speed_lines(cycle),
        ),
        ("Ops", op_lines(ops)),
        ("Open figures", open_lines(result["open"], brief=brief)),
    ]
    remark = f"**{result['not_real']}.**\n\n" if result.get("not_real") else ""
    return remark + "\n\n".join(f"## {title}\n\n" + "\n".join(lines) for title, lines in sections) + "\n"
