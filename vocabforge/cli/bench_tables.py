"""The tables that ``vocabforge bench`` ends with."""

from __future__ import annotations

from typing import Any

from .app import stdout_console


def _table(title: str, first: str, columns: tuple[str, ...]) -> Any:
    from rich import box
    from rich.table import Table

    shown = Table(title=title, box=box.SIMPLE_HEAD)
    shown.add_column(first, no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right")
    return shown


def print_counting(result: dict[str, Any]) -> None:
    title = f"{result['bytes'] / 1e6:,.1f} MB of text, {result['tokens']:,} tokens"
    shown = _table(title, "method", ("MB/s", "ratio", "seconds", "start, s", "memory, MB"))
    for method, row in result["methods"].items():
        spread = f"{row['ratio']:.1f}"
        if len(row["ratios"]) > 1:
            spread += f" ({min(row['ratios']):.1f}–{max(row['ratios']):.1f})"
        label = f"{method} ({row['engine']})" if row["engine"] else method
        shown.add_row(
            label,
            f"{row['mb_per_s']:,.1f}",
            spread,
            f"{row['seconds']:.2f}",
            f"{row['start_s']:.1f}",
            f"{row['memory_mb']:,.0f}",
        )
    out = stdout_console(highlight=True)
    out.print(shown)
    out.print(
        "ratio: to encode_batch, median of the rounds. seconds: reading, tokenizing, counting. start: loading the "
        "tokenizer, choosing and checking the engine. memory: highest resident memory above the loaded "
        "tokenizer's.",
        style="dim",
    )


def print_training(result: dict[str, Any]) -> None:
    out = stdout_console(highlight=True)
    out.print(f"{result['device']}, torch {result['torch']}, weights {result['weights']}", style="dim")
    # Only a GPU tells how much of it was allocated in all.
    peak = any(row["peak_mb"] is not None for shape in result["shapes"] for row in shape["step"])
    memory = ("extra MB", "peak MB") if peak else ("extra MB",)
    for shape in result["shapes"]:
        title = f"{shape['name']}: {shape['batch']} rows of {shape['length']:,} tokens, K = {shape['steps']}"
        shown = _table(title, "loss + attention", ("tokens/s", "seconds", *memory))
        for row in shape["step"]:
            label = f"{row['loss']} + {row['attention']}"
            rate = None if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.0f}"
            shown.add_row(
                label + (" + checkpointing" if row["checkpointing"] else ""), rate or "-", *_cost(row, memory)
            )
        out.print(shown)
        title = f"{shape['name']}: vocabulary loss alone, {shape['loss_rows']:,} rows, V = {shape['vocab']:,}"
        shown = _table(title, "loss", ("seconds", *memory))
        for row in shape["loss"]:
            shown.add_row(row["impl"], *_cost(row, memory))
        out.print(shown)
    meanings = ["extra MB: highest memory above what was held before, results included."]
    meanings += ["peak MB: all of the device's."] if peak else []
    meanings += ["-: the memory did not suffice.", "Seconds are medians of the rounds."]
    out.print(" ".join(meanings), style="dim")


def print_decoding(result: dict[str, Any]) -> None:

    from ..evaluate.bench_decoding_table import COLUMNS, cells, remarks

    settings = result["settings"]
    warmth = settings["temperature"]
    law = f"temperature {warmth:g}" if warmth else "greedy"
    title = f"{len(result['prompt_tokens'])} prompts, {settings['max_new_tokens']} new tokens each, {law}"
    shown = _table(title, COLUMNS[0], COLUMNS[1:])
    for row in result["modes"]:
        shown.add_row(*cells(row))
    out = stdout_console(highlight=True)
    out.print(shown)
    for line in remarks(result):
        out.print(line, style="dim", markup=False)


def print_kernels(result: dict[str, Any]) -> None:

    from ..evaluate.bench_kernels_table import markdown

    stdout_console().print(markdown(result, brief=True), markup=False, soft_wrap=True)


def print_heads(result: dict[str, Any]) -> None:

    from ..study.draft_heads import COLUMNS, cells

    settings = result["settings"]
    seeds = ", ".join(map(str, settings["seeds"]))
    title = f"{settings['prompts']} prompts, {settings['max_new_tokens']} tokens each, seeds {seeds}"
    shown = _table(title, COLUMNS[0], COLUMNS[1:])
    for row in result["table"]:
        shown.add_row(*cells(row))
    out = stdout_console(highlight=True)
    out.print(shown)
    identical = sum(row["identical"] for row in result["table"])
    outputs = sum(row["outputs"] for row in result["table"])
    out.print(
        f"{identical:,} of {outputs:,} outputs are plain decoding's. accepted length: tokens a cycle, the target's "
        "own included. tokens scored: a row of the exact head, mean. ±: sample deviation over seeds.",
        style="dim",
    )


def _cost(row: dict[str, Any], memory: tuple[str, ...]) -> tuple[str, ...]:
    """Seconds and the columns of memory that are shown."""
    seconds = "-" if row["seconds"] is None else f"{row['seconds']:.4f}"
    known = (row[key] for key in ("extra_mb", "peak_mb")[: len(memory)])
    return seconds, *("-" if value is None else f"{value:,.1f}" for value in known)


# benchmark -> what prints its result
PRINTERS = {
    "count-freq": print_counting,
    "decoding": print_decoding,
    "draft-heads": print_heads,
    "kernels": print_kernels,
    "training": print_training,
}
