"""``vocabforge bench kernels``: ops, draft heads, drafting and whole cycles on one device, beside their floors.

Needs torch alone, so that it also runs where the package is not installed (``kernels/gpu_check.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import UsageError, VocabForgeError, did_you_mean
from ..core.values import split_pair
from ..ops.backend import library_facts
from .bench_kernels_goals import goals
from .bench_kernels_machine import machine_facts, no_device
from .bench_kernels_parts import PARTS, Journal, Options, planned, run_part

SCHEMA, SCHEMA_VERSION = "vocabforge.bench-kernels", 1
REAL = Options()
SMALL = Options("cpu", ("small",), (1,), (), "auto", measure=0.001, budget=60.0)
# Shares of the time in which parts run on a GPU.
SHARES = {"ops": 0.4, "heads": 0.3, "drafting": 0.12, "cycle": 0.18}

Runner = Callable[[str, Options], Journal]


def bench_kernels(settings: Sequence[str], repeats: int = 3) -> dict[str, Any]:
    """Measure on this machine; on a CPU the same code at small sizes.

    Args:
        settings: ``key=value``: device, shapes, rows, ops, parts (lists with commas), backend, measure, budget
            (seconds of one measurement, of all parts).
        repeats: on a GPU a measurement takes 0.01 s for each of them, unless ``measure`` says otherwise.

    Returns:
        see :func:`measure`.

    Raises:
        UsageError: a setting that there is not, or a device that is not there.
    """
    values = _read(settings)
    device = values.pop("device", None) or default_device()
    if problem := no_device(device):
        raise UsageError(
            "the device cannot be used", got=problem, remedy="device=cpu proves the code without a GPU"
        )
    base = SMALL if device == "cpu" else replace(REAL, device=device, measure=0.01 * repeats, budget=400.0)
    parts = values.pop("parts", tuple(PARTS))
    options = replace(base, **values)
    return measure(options, parts, in_process)


def in_process(part: str, options: Options) -> Journal:
    """Run one part here."""
    journal = Journal(deadline=time.monotonic() + options.budget)
    try:
        run_part(part, options, journal)
    except Exception as error:  # noqa: BLE001 (what was measured stays, and the other parts follow)
        journal.leave(f"{part}: the rest", f"{type(error).__name__}: {error}")
    return journal


def measure(options: Options, parts: Sequence[str], run: Runner) -> dict[str, Any]:
    """Ceilings first, then the parts, each within its share of ``options.budget``.

    Returns:
        ``schema``, ``schema_version``, ``machine``, ``options``, ``ceilings``, ``parts`` (part -> name -> row),
        ``not_real`` (why these are not the wanted figures, or None), ``goals``, ``open`` (part -> name of a wanted
        figure that was not measured -> why), ``failed`` (part -> name -> what went wrong).
    """
    from .bench_kernels_ceilings import measure_ceilings

    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise UsageError(
            "there is no such part",
            got=", ".join(unknown),
            expected=", ".join(PARTS),
            remedy=did_you_mean(unknown[0], PARTS),
        )
    ceilings = measure_ceilings(options.protocol())
    options = replace(options, ceilings=ceilings)
    end, waiting = time.monotonic() + options.budget, sum(SHARES[part] for part in parts)
    journals = {}
    for part in parts:
        share = max(0.0, end - time.monotonic()) * SHARES[part] / waiting
        waiting -= SHARES[part]  # what a part leaves is for the others
        journals[part] = run(part, replace(options, budget=share))
    rows = {part: journal.rows for part, journal in journals.items()}
    missing = why_not_real(options)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "machine": machine_facts(options.device),
        "options": options.to_dict(),
        "ceilings": ceilings.to_dict(),
        "parts": rows,
        "not_real": missing,
        "goals": goals(rows, REAL.shapes, real=missing is None),
        "open": open_figures(journals, missing),
        "failed": failures(journals),
    }


def why_not_real(options: Options) -> str | None:
    """Why a run cannot give the wanted figures (those of a GPU, of real sizes, of compiled kernels), or None."""
    if options.device == "cpu":
        return "no GPU was used: this run only proves the code"
    if "small" in options.shapes:
        return "this run has small sizes"
    try:
        facts = library_facts()
    except VocabForgeError as error:
        return str(error)
    if facts is None or facts["variant"] != "native" or options.backend != "native":
        return "the CUDA kernels were not built or not used"
    return None


def open_figures(journals: Mapping[str, Journal], not_real: str | None) -> dict[str, dict[str, str]]:
    """Every wanted figure (``REAL``) that was not measured, and why.

    Args:
        journals: of the parts that ran.
        not_real: why none of them counts, or None.
    """
    found: dict[str, dict[str, str]] = {}
    for part, names in planned(REAL).items():
        journal = journals.get(part, Journal())
        why = not_real or ("not reached" if part in journals else "not part of this run")
        measured = {name for name, row in journal.rows.items() if not row.get("problems")}
        missing = {
            name: why if not_real else journal.open.get(name, why)
            for name in names
            if not_real or name not in measured
        }
        if missing:
            found[part] = missing
    return found


def failures(journals: Mapping[str, Journal]) -> dict[str, dict[str, str]]:
    """Wrong results, and figures that could not be measured for another reason than time."""
    found: dict[str, dict[str, str]] = {}
    for part, journal in journals.items():
        wrong: dict[str, str] = {}
        for name, row in journal.rows.items():
            told = {**row.get("problems", {}), **row.get("graph_problems", {})}
            if told:
                wrong[name] = "; ".join(f"{kind}: {text}" for kind, text in told.items())
        wrong |= {name: why for name, why in journal.open.items() if why != "no time left"}
        if wrong:
            found[part] = wrong
    return found


def default_device() -> str:
    """CUDA where there is a GPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


_LISTS: dict[str, type] = {"shapes": str, "rows": int, "ops": str, "parts": str}
_SINGLE: dict[str, type] = {"device": str, "backend": str, "measure": float, "budget": float}


def _read(settings: Sequence[str]) -> dict[str, Any]:
    """``key=value`` as values."""
    from .op_benches import OP_BENCHES
    from .op_benches.types import SHAPES

    known = {**_LISTS, **_SINGLE}
    values: dict[str, Any] = {}
    for setting in settings:
        key, text = split_pair(setting, expected=", ".join(f"{name}=..." for name in known))
        if key not in known:
            raise UsageError(
                "there is no such setting",
                got=setting,
                expected=", ".join(f"{name}=..." for name in known),
                remedy=did_you_mean(key, known),
            )
        parts = text.split(",") if key in _LISTS else [text]
        try:
            read = tuple(known[key](part) for part in parts)
        except ValueError as error:
            raise UsageError("a setting cannot be read", got=setting, expected=f"{key}=NUMBER") from error
        values[key] = read if key in _LISTS else read[0]
    for key, table in (("shapes", SHAPES), ("ops", OP_BENCHES)):
        unknown = [name for name in values.get(key, ()) if name not in table]
        if unknown:
            raise UsageError(
                f"there are no such {key}",
                got=", ".join(unknown),
                expected=", ".join(table),
                remedy=did_you_mean(unknown[0], table),
            )
    return values


def write_report(result: Mapping[str, Any], folder: Path, name: str, head: str) -> None:
    """``name.json`` and ``name.md`` in a folder; ``head`` is the Markdown before the tables."""
    import json

    from ..core.files import atomic_write, atomic_write_json
    from .bench_kernels_table import markdown

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_json(folder / f"{name}.json", json.loads(json.dumps(result)))
    atomic_write(folder / f"{name}.md", head + markdown(result))
