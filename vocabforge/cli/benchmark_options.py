"""Options that say which questions are asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _list_benchmarks(show: bool) -> None:
    if not show:
        return
    from ..evaluate.benchmarks import describe_benchmarks

    for row in describe_benchmarks():
        scored = f", scored as {row.scorer}" if row.scorer else ""
        typer.echo(
            f"{row.name}: {row.questions} questions, at most {row.max_new_tokens} new tokens a turn{scored}"
        )
        typer.echo(f"  {row.about}\n  File: {row.where}")
    raise typer.Exit


BenchmarkOption = Annotated[
    str,
    typer.Option(
        "--benchmark",
        help="spec-bench, human-eval, gsm8k, sample (made here), or a file: Spec-Bench, HumanEval, GSM8K, "
        "ShareGPT or messages.",
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with benchmark files [default: VOCABFORGE_DATA, data, the cache]."),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--benchmark-format", help="Format of a --benchmark file [default: told by its content]."),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Never fetch a benchmark from its public source.")
]
ListOption = Annotated[
    bool,
    typer.Option(
        "--list-benchmarks",
        is_eager=True,
        callback=_list_benchmarks,
        help="Name the known benchmarks and where their files are found, and exit.",
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Only N questions, spread evenly over the benchmark."),
]
