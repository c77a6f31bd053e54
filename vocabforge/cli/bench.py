"""``vocabforge bench``: measure, on this machine, what the documentation claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .app import JsonOption, print_json

# name -> "module:attr"; a benchmark is a function of (tokenizer, inputs, repeats=, workers=, text_unit=).
BENCHMARKS: dict[str, str] = {"count-freq": "vocabforge.evaluate.bench_counting:bench_counting"}


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: count-freq.")],
    tokenizer: Annotated[Path, typer.Option(metavar="PATH", help="Tokenizer folder or tokenizer.json.")],
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="PATH", help="Text or JSON files, as for count-freq; repeatable."),
    ],
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the methods take turns in each.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Counting processes of VocabForge.")] = 1,
    text_unit: Annotated[str, typer.Option(help="file, line or paragraph.")] = "file",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the same files with the tokenizers library and with VocabForge, and print the ratios.

    Each measurement is a fresh process; the methods take turns; the counts must be identical. `encode_batch`
    is the library's batch encoding followed by bincount.

    Example: `vocabforge bench count-freq --tokenizer model/ --input corpus/`
    """
    import json

    from ..core.errors import UsageError
    from ..core.extension import resolve
    from ..core.files import atomic_write_json

    run = resolve(BENCHMARKS, name, "benchmark")
    if text_unit not in ("file", "line", "paragraph"):
        raise UsageError("there is no such unit", got=text_unit, expected="file, line or paragraph")
    result = run(tokenizer, inputs, repeats=repeats, workers=workers, text_unit=text_unit)
    if output is not None:
        atomic_write_json(output, json.loads(json.dumps(result)))
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = f"{result['bytes'] / 1e6:,.1f} MB of text, {result['tokens']:,} tokens"
    shown = Table(title=title, box=box.SIMPLE_HEAD)
    shown.add_column("method", no_wrap=True)
    for name in ("MB/s", "ratio", "seconds", "start, s", "memory, MB"):
        shown.add_column(name, justify="right")
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
    out = Console()
    out.print(shown)
    out.print(
        "ratio: to encode_batch, median of the rounds. seconds: reading, tokenizing, counting. start: loading the "
        "tokenizer, choosing and checking the engine. memory: highest resident memory above the loaded "
        "tokenizer's.",
        style="dim",
    )
