"""What a search found, as ``tune.json`` holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.files import sha256_file
from ..core.provenance import command_line
from ..decode.method_spec import MethodSpec
from .joining import Joined, Loaded, Space
from .outcome import CandidateRow, TuneResults
from .predict import Prediction
from .recommend import accepted_of, batch_rows, identical, recommend
from .search import Entry
from .table import LATENCY, LatencyTable


def results_of(
    loaded: Loaded,
    space: Space,
    joined: Joined,
    entries: Sequence[Entry],
    plain: Mapping[int, Prediction],
    late: bool,
) -> TuneResults:
    """All of ``tune.json`` but the check.

    Args:
        late: the time for measuring acceptance was up.
    """
    inputs, options, table = loaded.inputs, loaded.options, joined.latency
    rows = [_row(entry, loaded, space, joined, plain) for entry in entries]
    return TuneResults(
        version=__version__,
        command=command_line(),
        target=inputs.target.resolve().name,
        drafter=str(inputs.drafter),
        what_if=None if inputs.what_if is None else str(inputs.what_if),
        latency=_latency_facts(table, inputs.what_if or loaded.output / LATENCY),
        environment=loaded.environment,
        inputs=loaded.input_hashes,
        settings={
            "new_tokens": options.new_tokens,
            "batches": list(options.batches),
            "prompts": inputs.prompts,
            "prompt_format": loaded.halves.form,
            "dtype": options.dtype,
            "budget": options.budget,
        },
        prompts={
            "measured": len(loaded.source),
            "checking": len(loaded.halves.checking.questions),
            "left_out": loaded.halves.left_out,
        },
        plain=batch_rows(plain, plain),
        candidates=rows,
        recommendations=[recommend(entries, plain, batch) for batch in options.batches],
        remarks=_remarks(loaded, space, joined, rows, late),
    )


def _row(
    entry: Entry, loaded: Loaded, space: Space, joined: Joined, plain: Mapping[int, Prediction]
) -> CandidateRow:
    candidate = entry.candidate
    return CandidateRow(
        name=entry.name,
        head=candidate.head.name,
        scores=space.heads[candidate.head].label,
        tree=candidate.tree.label,
        state=entry.state,
        prompts=len(entry.rows),
        identical=identical(entry.rows),
        accepted=accepted_of(entry),
        batches=batch_rows(entry.by_batch, plain, joined.warnings(entry)),
        bound=dict(entry.bound),
        method=method_of(candidate.recipe(loaded.inputs.drafter)),
    )


def method_of(recipe: MethodSpec) -> MethodSpec:
    """The same with paths that hold wherever the recipe is used from."""
    paths = {name: getattr(recipe, name) for name in ("drafter", "vocab", "head")}
    return recipe.model_copy(
        update={name: path.resolve() for name, path in paths.items() if path is not None}
    )


def _latency_facts(table: LatencyTable, path: Path) -> dict[str, Any]:
    return {
        "file": str(path),
        "sha256": sha256_file(path / LATENCY if path.is_dir() else path),
        "environment": dict(table.environment),
        "dtype": table.dtype,
        "graphs": table.graphs,
        "error": table.error,
        "notes": list(table.notes),
    }


def _remarks(
    loaded: Loaded, space: Space, joined: Joined, rows: Sequence[CandidateRow], late: bool
) -> list[str]:
    table, options = joined.latency, loaded.options
    found = []
    if loaded.inputs.what_if is not None:
        where = table.environment.get("gpu") or table.environment.get("processor") or "another machine"
        found.append(
            f"What if: all seconds come from {loaded.inputs.what_if}, measured on {where}; accepted lengths were "
            "measured here. No speed was measured on this machine."
        )
    if table.dtype != options.dtype:
        found.append(
            f"Seconds are of {table.dtype}, accepted lengths of {options.dtype}: rounding changes them a little."
        )
    found += [f"{name} was not searched: {why}." for name, why in space.left_out.items()]
    hopeless = [row.name for row in rows if row.state == "cannot win"]
    if hopeless:
        found.append(
            f"{len(hopeless)} ways were not decoded, {hopeless[0]} among them: they could not win if all their drafts "
            "were accepted."
        )
    if late:
        done = sum(row.state == "measured" for row in rows)
        unreached = sum(row.state == "not reached" for row in rows)
        found.append(
            f"The time for measuring acceptance was up: {done} of {len(rows)} ways are known on all prompts, "
            f"{unreached} on none. The same command with a longer --budget goes on."
        )
    warned = [row for row in rows if any(found.warnings for found in row.batches)]
    if warned:
        first = next(found.warnings[0] for found in warned[0].batches if found.warnings)
        found.append(
            f"The seconds of {len(warned)} ways go beyond what was measured; of {warned[0].name}, {first}."
        )
    different = [row for row in rows if row.identical < row.prompts]
    if different:
        found.append(
            f"{len(different)} ways gave another output than plain decoding on a prompt or more, first "
            f"{different[0].name}: two logits of the target may lie so close there that rounding decides; eval "
            "tells which it is."
        )
    if loaded.halves.left_out:
        found.append(f"{loaded.halves.left_out} questions were left out: too long for the target.")
    return found
