"""Shared command-line options, tables and JSON output of the scripts in this folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from vocabforge.core.console import DataTable
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.files import atomic_write_json, check_output_file

Shown = Sequence[DataTable | str]


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(
        "--repeats", type=int, default=3, help="number of rounds; the methods alternate in each"
    )
    found.add_argument("--output", type=Path, help="also write the figures to this JSON file")
    return found


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
    out = Console()
    for one in shown(result):
        if isinstance(one, str):
            out.print(one, style="dim", markup=False, highlight=False)
        else:
            out.print(one)


def run(
    about: str | None,
    bench: Callable[..., dict[str, Any]],
    shown: Callable[[dict[str, Any]], Shown],
) -> None:
    """Run a benchmark that takes ``KEY=VALUE`` settings."""
    words = parser(about)
    words.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    asked = words.parse_args()
    present(lambda: bench(asked.settings, repeats=asked.repeats), shown, asked.output)
