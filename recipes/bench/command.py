"""What the scripts of this folder share: options, prompts, taking turns, tables and JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from vocabforge.core.config import Positive
from vocabforge.core.console import DataTable
from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.core.files import atomic_write_json, check_output_file
from vocabforge.core.progress import ProgressBar
from vocabforge.corpus.tokenizer.prompt_format import resolve_format
from vocabforge.decode.build.models import Models
from vocabforge.decode.build.recipe import DecodingRecipe
from vocabforge.evaluate.benchmarks import load_benchmark
from vocabforge.evaluate.run.prompts import PromptBuilder, system_of

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
        result = json.loads(json.dumps(measure()))
        if output is not None:
            atomic_write_json(output, result)
    except VocabForgeError as error:
        sys.exit(error.render())
    console = Console()
    for part in shown(result):
        if isinstance(part, str):
            console.print(part, style="dim", markup=False, highlight=False)
        else:
            console.print(part)


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
    found: dict[SideT, list[float]] = {side: [] for side in sides}
    names = list(sides)
    with ProgressBar(label, repeats * len(sides), "runs") as bar:
        for number in range(repeats):
            first = number % len(names)
            for side in names[first:] + names[:first]:
                found[side].append(sides[side]())
                bar.update(1)
    return found


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


class PromptedRecipe(DecodingRecipe):
    """A decoding recipe and the prompts that its methods continue, given as ``key=value``.

    Attributes:
        methods: as ``eval --recipe`` reads them: ``methods.NAME.drafter=DIR``, ``methods.NAME.proposer=n-gram``.
        prompts: a benchmark's name, or a file of questions or conversations; first turns are used.
        questions: number of prompts, evenly spread over the file.
        max_new_tokens: new tokens per prompt; there is no early stop.
        threads: CPU threads of all sides; None: torch's default.
    """

    prompts: str = "sample"
    questions: Positive = 8
    max_new_tokens: Positive = 64
    threads: Positive | None = None


def read_prompts(models: Models, name: str, count: int, new: int) -> list[list[int]]:
    """Return the token ids of the first turns of ``count`` questions, rendered with the target's chat template.

    Raises:
        UsageError: a prompt and its ``new`` tokens do not fit the target's context.
    """
    form = resolve_format(models.tokenizer, "auto")
    prompts = [
        PromptBuilder(models.tokenizer, form, system_of(question, None)).ask(question.turns[0])
        for question in load_benchmark(name, count).questions
    ]
    longest, most = max(map(len, prompts)), models.model.config.max_positions
    if longest + new > most:
        raise UsageError(
            "a prompt does not fit the target's context",
            got=f"{longest} tokens and {new} new ones",
            expected=f"{most} at most",
            remedy="lower the number of new tokens, or choose other prompts",
        )
    return prompts
