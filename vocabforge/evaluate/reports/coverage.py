"""PNG plot of a coverage study, and its tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.artifact import write_artifact
from ...core.console import DataCell, DataTable
from ...core.files import atomic_write, atomic_write_json
from .coverage_data import HELD_OUT
from .plots import Panel, Trace, render_png

CoverageResults = Mapping[str, Any]


def write_coverage(
    results: CoverageResults, output: Path, parents: Mapping[str, str], *, overwrite: bool = False
) -> None:
    """Write the artefact: ``coverage.json`` and ``coverage.png``."""
    names = [text["name"] for text in results["texts"]]
    meta = {**{key: results[key] for key in ("vocab_size", "fingerprint", "sizes")}, "texts": names}
    with write_artifact(output, "coverage", meta, parents=parents, overwrite=overwrite) as folder:
        atomic_write_json(folder / "coverage.json", results)
        atomic_write(folder / "coverage.png", render_coverage(results))


def render_coverage(results: CoverageResults) -> bytes:
    """Plot the covered share of each text over sizes as a PNG file.

    The dotted lines are the knee, the sizes asked for and the draft vocabularies, with the share of the first
    held-out text, or of all counted tokens.
    """
    sizes = results["curve_sizes"]
    first = max(16, sizes[-1] >> 10)
    kept = [index for index, size in enumerate(sizes) if size >= first] or list(range(len(sizes)))
    x = [sizes[at] for at in kept]
    traces = [
        Trace(number, x, [100 * text["curve"][at] for at in kept], text["name"], text["role"] == HELD_OUT)
        for number, text in enumerate(results["texts"])
    ]
    marks = [(size, f"{name}: {_inside(share)}%") for size, share, name in _marked(results) if size >= x[0]]
    labels = ("size of the draft vocabulary", "tokens inside, %")
    title = f"Coverage by size, {_knee_text(results)['name']} marked" if marks else "Coverage by size"
    panel = Panel(title, labels, traces, log_x=True, bottom=0.0, top=101.0, marks=marks)
    return render_png(results["table"]["name"], [panel])


def _heads(results: CoverageResults) -> list[str]:
    names = [text["name"] + ("\n(held out)" if text["role"] == HELD_OUT else "") for text in results["texts"]]
    return ["all", *names[1:]]


def coverage_table(results: CoverageResults) -> DataTable:
    """Return a table of each text's covered share of tokens by size."""
    rows = [
        [
            f"{size:,}",
            _inside(size / results["vocab_size"]),
            *(
                DataCell(_inside(text["coverage"][row]), f"({_inside(text['own_coverage'][row])})")
                for text in results["texts"]
            ),
        ]
        for row, size in enumerate(results["sizes"])
    ]
    note = (
        "Among the first ids of the ranking made from all counted tokens. In brackets: the most that any ids in this "
        "number could cover."
    )
    return DataTable("Tokens inside, %", ["size", "of V", *_heads(results)], rows, note)


def vocabulary_table(results: CoverageResults) -> DataTable:
    """Return a table of draft vocabularies by text, with the best share for their size, and schedules."""
    rows: list[list[object]] = []
    names = [text["name"] for text in results["texts"]]
    for vocabulary in results["vocabularies"]:
        cells = [
            DataCell(_inside(vocabulary["coverage"][name]), f"({_inside(vocabulary['best'][name])})")
            for name in names
        ]
        rows.append([vocabulary["name"], vocabulary["size"], *cells])
        for step, size in enumerate(vocabulary["schedule"]):
            inside = [_inside(vocabulary["by_step"][name][step]) for name in names]
            rows.append([f"  draft step {step}", f"{size:,}", *inside])
    note = "In brackets: the most that so many ids could cover."
    columns = ["vocabulary<", "size", *_heads(results)]
    return DataTable("Draft vocabularies: tokens inside, %", columns, rows, note)


def coverage_tables(results: CoverageResults) -> list[DataTable]:
    """Return the tables of coverage by size and text, and of draft vocabularies if there are any."""
    return [coverage_table(results), *([vocabulary_table(results)] if results["vocabularies"] else [])]


def summary_lines(results: CoverageResults) -> list[str]:
    """Return sentences on the counted table and the held-out tables."""
    lines = _knee_lines(results)
    if (unseen := results["texts"][0]["unseen_estimate"]) is not None:
        lines.append(f"Expected share of further tokens without a count (Good-Turing): {unseen:.4%}.")
    lines += [
        f"{text['name']} (held out): {text['without_count']:.4%} of its tokens have an id without a count."
        for text in results["texts"]
        if text["role"] == HELD_OUT and not text["domain"]
    ]
    return lines


def _knee_lines(results: CoverageResults) -> list[str]:
    text = _knee_text(results)
    if (knee := text.get("knee")) is None:  # written by an older version
        return []
    return [
        f"Knee of {text['name']}: {knee['size']:,} ids hold {_inside(knee['coverage'])}% of its tokens; beyond it "
        "coverage grows by less per doubling than over the whole curve."
    ]


def _inside(value: float | None) -> str:
    if value is None:
        return "–"
    # Do not round up to 100 if a token is missing.
    return f"{100 * value:.2f}" if value < 0.99995 or value == 1.0 else ">99.99"


def _knee_text(results: CoverageResults) -> Mapping[str, Any]:
    """Return the text whose knee is marked: the first held-out text, or all counted tokens."""
    whole = [text for text in results["texts"] if not text["domain"]]
    return next((text for text in whole if text["role"] == HELD_OUT), whole[0])


def _marked(results: CoverageResults) -> list[tuple[int, float, str]]:
    """Return size, covered share and name of the knee, the chosen sizes, and the draft vocabularies."""
    text, sizes = _knee_text(results), results["sizes"]
    marked = []
    if knee := text.get("knee"):
        marked.append((knee["size"], knee["coverage"], f"knee {knee['size']:,}"))
    chosen = results.get("chosen_sizes", ())
    marked += [(size, text["coverage"][sizes.index(size)], f"chosen {size:,}") for size in chosen]
    marked += [
        (
            vocabulary["size"],
            vocabulary["coverage"][text["name"]],
            f"{vocabulary['name']} ({vocabulary['size']:,})",
        )
        for vocabulary in results["vocabularies"]
    ]
    return marked
