"""A tuning run: time candidates, search the space, and write the files.

The folder holds all measurements under hashes of their inputs: the same command resumes after an
interruption, and another space in the same folder reuses common measurements.
"""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

from ..core.console import say
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, check_run_folder
from ..core.lock import only_writer
from ..core.progress import ProgressBar
from ..decode.build.recipe import PLAIN, DecodingRecipe, write_recipe
from ..decode.interface import Wrap
from .results import RECIPE, TUNE, TuneResults, results_of
from .search import FIRST, Entry, answers_of, search
from .session import TuneSession
from .settings import MethodSpace, TuneSettings

SPEEDS = "speeds"
_OTHERS = 5  # number of methods in the recipe in addition to the recommended ones


def tune(
    output: Path, settings: TuneSettings, space: MethodSpace, *, wrap: Wrap | None = None, fresh: bool = False
) -> TuneResults:
    """Search, recommend and write ``recipe.yaml`` and ``tune.json``.

    Args:
        output: folder of the run, created or resumed.
        wrap: accelerates passes, as in ``eval``.
        fresh: discard earlier measurements.

    Raises:
        VocabForgeError: an input is missing or damaged, or inputs do not match.
    """
    _check_folder(output)
    with only_writer(output):
        if fresh:
            shutil.rmtree(output / SPEEDS, ignore_errors=True)
        loaded = TuneSession(output, settings, space, wrap)
        results = results_of(loaded, *_search(loaded))
        write_recipe(output / RECIPE, _recipe(loaded, results))
        atomic_write_json(output / TUNE, results.model_dump(mode="json"))
    return results


def _check_folder(output: Path) -> None:
    check_run_folder(output)
    # Temporary files of killed writes are hidden files.
    names = {item.name for item in output.iterdir() if item.name[0] != "."} if output.is_dir() else set()
    if names and not names & {SPEEDS, TUNE}:
        raise UsageError(
            "the folder holds something else",
            got=output,
            expected="an empty folder, or one of an earlier tune",
            remedy="choose another --output",
        )


def _search(loaded: TuneSession) -> tuple[list[Entry], bool]:
    """Search with a progress bar; return the entries and whether the time limit was reached.

    The first round, which tries every method, takes at most half of the time.
    """
    meter, methods, began = loaded.meter, loaded.candidates, time.monotonic()
    seconds = loaded.settings.seconds
    limit = None if math.isinf(seconds) else seconds
    first, batches = FIRST * max(loaded.settings.batch), len(loaded.settings.batch)
    say(
        f"{len(methods)} methods, each on {min(first, len(meter))} to {len(meter)} prompts"
        + (
            ""
            if limit is None
            else f", for at most {limit:.0f} s: --seconds buys more prompts for more methods."
        )
    )

    def left(number: int) -> float:
        return began + seconds * (0.5 if number == 1 else 1.0) - time.monotonic()

    asked = batches * answers_of(len(methods), len(meter), first=first)
    total = max(1, asked - sum(map(loaded.known, methods)))
    with ProgressBar("Measuring", total, "answers", limit_s=limit) as bar:
        meter.on_answers = bar.update
        found = search(
            methods, loaded, len(meter), first=first, left=left, tell=lambda what: bar.update(note=what)
        )
    return found, any(entry.state == "not reached" for entry in found) or left(2) <= 0


def _recipe(loaded: TuneSession, results: TuneResults) -> DecodingRecipe:
    """Return the recommended methods first, then what they were compared with."""
    best = {one.method: None for one in results.recommendations if one.method != PLAIN}
    others = [name for one in results.recommendations for name in one.others if name not in best]
    names = [*best, *list(dict.fromkeys(others))[:_OTHERS]]
    if not names:
        raise DataError("nothing was measured", remedy="give more --seconds")
    tokenizer = loaded.settings.tokenizer
    return DecodingRecipe(
        target=loaded.settings.target.resolve(),
        tokenizer=None if tokenizer is None else tokenizer.resolve(),
        dtype=loaded.settings.dtype,
        target_backend=loaded.settings.target_backend,
        methods={name: results.row(name).method for name in names},
    )
