"""What the scripts of this folder share: options, taking turns, tables and JSON."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vocabforge.core.console import DataTable, open_console
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.files import atomic_write_json, check_output_file
from vocabforge.core.progress import ProgressBar

Shown = Sequence[DataTable | str]
SideT = TypeVar("SideT")


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    words = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument(
        "--repeats", type=int, default=3, help="number of rounds; the methods alternate in each"
    )
    words.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    return words


def present(
    measure: Callable[[], dict[str, Any]], shown: Callable[[dict[str, Any]], Shown], output: Path | None
) -> None:
    """Measure, print tables and remarks, and write the figures."""
    try:
        if output is not None:
            check_output_file(output)
        result = measure()
        if output is not None:
            atomic_write_json(output, result)
    except VocabForgeError as error:
        sys.exit(error.render())
    console = open_console()
    for part in shown(result):
        console.print(part, style="dim" if isinstance(part, str) else None)


def run(
    about: str | None, bench: Callable[..., dict[str, Any]], shown: Callable[[dict[str, Any]], Shown]
) -> None:
    """Run a benchmark that takes ``KEY=VALUE`` settings."""
    words = parser(about)
    words.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    asked = words.parse_intermixed_args()
    present(lambda: bench(asked.settings, repeats=asked.repeats), shown, asked.output)


def take_turns(
    label: str, sides: Mapping[SideT, Callable[[], float]], repeats: int
) -> dict[SideT, list[float]]:
    """Run every side once a round, each round beginning with another side; return what they measured."""
    measured: dict[SideT, list[float]] = {side: [] for side in sides}
    names = list(sides)
    with ProgressBar(label, repeats * len(sides), "runs") as bar:
        for number in range(repeats):
            first = number % len(names)
            for side in names[first:] + names[:first]:
                measured[side].append(sides[side]())
                bar.update(1)
    return measured


def seconds_of(call: Callable[..., object], *given: object) -> float:
    """Return the wall time of a call."""
    began = time.perf_counter()
    call(*given)
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest of the rounds."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def speed_up(mine: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Return how often the seconds ``mine`` fit into those of the other side, round by round."""
    return spread([b / a for a, b in zip(mine, other, strict=True)])


def spread_text(values: Mapping[str, float] | None, digits: int = 2) -> str | None:
    """Format a spread as ``median (lowest–highest)``."""
    if values is None:
        return None
    median, lowest, highest = (f"{values[key]:.{digits}f}" for key in ("median", "lowest", "highest"))
    return median if lowest == highest else f"{median} ({lowest}–{highest})"
