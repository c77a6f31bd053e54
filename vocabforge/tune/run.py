"""A tuning run: latency and acceptance are measured and joined, the space is searched, files are written.

The folder holds everything that was measured, under hashes of what decides it: the same command continues after an
interruption, and another space in the same folder reuses what it shares.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from .. import __version__
from ..core.console import say
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write, atomic_write_json, check_run_folder, read_json, sha256_file
from ..core.lock import only_writer
from ..core.progress import ProgressBar
from ..decode.build.recipe import PLAIN, DecodingRecipe, write_recipe
from ..decode.proposers.interface import Wrap
from .latency.measure import LatencyInputs, measure_latency, shapes_of_drafter, shapes_of_target
from .latency.table import LATENCY, LatencyTable, read_latency, write_latency
from .outcome import RECIPE, REPORT, TUNE, TuneResults
from .report import render_report
from .search.acceptance import digest
from .search.check import check_predictions
from .search.recommend import results_of
from .search.search import FIRST, Entry, answers_of, search
from .search.session import Joined, TuneSession
from .settings import MethodSpace, TuneSettings
from .types import setting_of

MEASURED_FOR = "latency-of.json"
_OTHERS = 5  # methods of the recipe beside the recommended ones


def tune(
    output: Path, settings: TuneSettings, space: MethodSpace, *, wrap: Wrap | None = None, fresh: bool = False
) -> TuneResults:
    """Search, recommend and write ``recipe.yaml``, ``tune.json`` and ``report.html``.

    Args:
        output: folder of the run; it is made, or continued.
        wrap: makes the passes of the check faster, as ``eval`` does.
        fresh: measure latency again.

    Raises:
        VocabForgeError: anything missing, damaged, or not belonging together.
    """
    _check_folder(output)
    with only_writer(output):
        loaded = TuneSession(output, settings, space)
        table = _latency_of(loaded, fresh=fresh)
        if settings.check and dict(table.environment) != loaded.environment:
            raise UsageError(
                "a check compares with speeds of this machine, and the seconds are another's",
                got=f"--check {settings.check} with {settings.what_if}",
                remedy="leave --check out, or run tune with --check on that machine",
            )
        joined = Joined(loaded, table)
        entries, late = _search(joined)
        results = results_of(joined, entries, late)
        _write(output, loaded, results)
        if settings.check:
            check = check_predictions(joined, entries, settings.check, wrap)
            results = results.model_copy(update={"check": check})
            _write(output, loaded, results)
    return results


def measure_latency_only(output: Path, settings: TuneSettings, space: MethodSpace) -> LatencyTable:
    """Write ``latency.json`` alone, for ``--what-if`` on another machine.

    Raises:
        VocabForgeError: see :func:`tune`.
    """
    if settings.what_if is not None:
        raise UsageError(
            "nothing is measured with --what-if",
            got="--measure-only and --what-if",
            expected="one of them",
            remedy="leave --what-if out to measure, or --measure-only to predict",
        )
    _check_folder(output)
    with only_writer(output):
        return _latency_of(TuneSession(output, settings, space), fresh=True)


def _latency_of(loaded: TuneSession, *, fresh: bool) -> LatencyTable:
    """The latency table: of another machine, measured here before for the same space, or measured now."""
    settings, model = loaded.settings, loaded.models.model
    if settings.what_if is not None:
        table = read_latency(settings.what_if)
        shapes = shapes_of_target(model), shapes_of_drafter(loaded.drafter)
        table.check_shapes(*shapes, source=settings.what_if)
        return table
    heads, prompts = [loaded.head(choice) for choice in loaded.choices], loaded.halves.tuning.prompts
    wanted = digest(
        {
            "hashes": loaded.input_hashes,
            "trees": [tree.model_dump(mode="json") for tree in loaded.trees],
            "heads": [setting_of(head).model_dump(mode="json") for head in heads],
            "batches": list(settings.batch),
            "new_tokens": settings.max_new_tokens,
            "prompts": [len(prompt) for prompt in prompts],
            "environment": loaded.environment,
            "vocabforge": __version__,
        }
    )
    path, note = loaded.output / LATENCY, loaded.output / MEASURED_FOR
    if not fresh and path.is_file() and note.is_file():
        known = read_json(note, "note beside the latency file")
        known = known if isinstance(known, dict) else {}
        if (known.get("digest"), known.get("sha256")) == (wanted, sha256_file(path)):
            table = read_latency(path)
            if not table.notes or known.get("seconds", 0) >= settings.latency_seconds:
                say(f"Latency: as measured before for the same space ({path}).")
                return table
    asked = LatencyInputs(
        model,
        loaded.drafter,
        heads,
        loaded.trees,
        prompts,
        settings.batch,
        settings.max_new_tokens,
        loaded.hashes["target"],
        loaded.hashes["drafter"],
    )
    table = measure_latency(asked, settings.latency_seconds)
    write_latency(path, table)
    measured = {"digest": wanted, "sha256": sha256_file(path), "seconds": settings.latency_seconds}
    atomic_write_json(note, measured)
    return table


def _check_folder(output: Path) -> None:
    check_run_folder(output)
    # Temporary files of a killed write are hidden.
    names = {item.name for item in output.iterdir() if item.name[0] != "."} if output.is_dir() else set()
    if names and not names & {LATENCY, MEASURED_FOR, "acceptance", "vocab"}:
        raise UsageError(
            "the folder holds something else",
            got=output,
            expected="an empty folder, or one of an earlier tune",
            remedy="choose another --output",
        )


def _search(joined: Joined) -> tuple[list[Entry], bool]:
    """The search, with a progress bar; whether its time was up.

    The first round, which tries every method, takes at most half of the time.
    """
    source, methods, began = joined.loaded.source, joined.candidates, time.monotonic()
    seconds = joined.loaded.settings.seconds - joined.loaded.settings.latency_seconds
    limit = None if math.isinf(seconds) else seconds
    say(
        f"{len(methods)} methods, each on {min(FIRST, len(source))} to {len(source)} prompts"
        + (
            ""
            if limit is None
            else f", for at most {limit:.0f} s: --seconds buys more prompts for more methods."
        )
    )

    def left(number: int) -> float:
        return began + seconds * (0.5 if number == 1 else 1.0) - time.monotonic()

    total = max(1, answers_of(len(methods), len(source)) - sum(map(joined.known, methods)))
    with ProgressBar("Acceptance", total, "answers", limit_s=limit) as bar:
        source.on_answers = bar.update
        found = search(methods, joined, len(source), left=left, tell=lambda what: bar.update(note=what))
    return found, any(entry.state == "not reached" for entry in found) or left(2) <= 0


def _write(output: Path, loaded: TuneSession, results: TuneResults) -> None:
    write_recipe(output / RECIPE, _recipe(loaded, results))
    atomic_write(output / REPORT, render_report(results))
    atomic_write_json(output / TUNE, results.model_dump(mode="json"))


def _recipe(loaded: TuneSession, results: TuneResults) -> DecodingRecipe:
    """The recommended methods first, then what they were compared with."""
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
