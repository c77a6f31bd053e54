"""Options that say which questions are asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.config import Positive, StrictModel
from ..app import echo, guarded
from .groups import option

if TYPE_CHECKING:
    from ...evaluate.benchmarks import Benchmark

_WANTED = "vocabforge.list_benchmarks"


def _ask_for_list(context: typer.Context, show: bool) -> bool:
    """Note that the list is wanted; it is printed as soon as ``--data`` is known, which may stand behind it."""
    context.meta[_WANTED] = show
    if show and "data" in context.params:
        _list_benchmarks(data=context.params["data"])
    return show


def _know_data(context: typer.Context, data: Path | None) -> Path | None:
    if context.meta.get(_WANTED):
        _list_benchmarks(data=data)
    return data


@guarded
def _list_benchmarks(data: Path | None) -> None:
    from ...evaluate.benchmarks import BENCHMARKS, benchmark_place

    for name, row in BENCHMARKS.items():
        scored = f", scored as {row.scorer}" if row.scorer else ""
        echo(f"{name}: {row.questions:,} questions, at most {row.max_new_tokens:,} new tokens a turn{scored}")
        echo(f"  {row.about}\n  File: {benchmark_place(name, data)}")
    raise typer.Exit


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        is_eager=True,
        callback=_know_data,
        help="Folder with benchmark files [default: VOCABFORGE_DATA, data, the cache].",
    ),
]
ListOption = Annotated[
    bool,
    typer.Option(
        "--list-benchmarks",
        is_eager=True,
        callback=_ask_for_list,
        help="Name the known benchmarks and where their files are found, and exit.",
    ),
]


class BenchmarkOptions(StrictModel):
    """The questions of an evaluation."""

    benchmark: str = option(
        ...,
        "spec-bench, human-eval, gsm8k, sample (made here), or a file: Spec-Bench, HumanEval, GSM8K, ShareGPT or "
        "messages.",
    )
    offline: bool = option(False, "Never fetch a benchmark from its public source.")
    limit: Positive | None = option(None, "Only N questions, spread evenly over the benchmark.")

    def load(self, data: Path | None) -> Benchmark:
        """The questions."""
        from ...evaluate.benchmarks import load_benchmark

        return load_benchmark(self.benchmark, self.limit, data=data, offline=self.offline)
