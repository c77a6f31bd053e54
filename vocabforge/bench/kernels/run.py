"""``vocabforge bench kernels``: ops, draft heads, drafting and whole cycles on one device, beside their floors.

Needs torch alone, so that it also runs where the package is not installed (``kernels/gpu_check.py``).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ...core.errors import UsageError, VocabForgeError, did_you_mean
from ...core.provenance import git_revision, program_output
from ...core.registry import check_known
from ...core.values import split_pair
from ...evaluate.run.environment import describe_environment
from ...ops.backend import library_facts
from .cases.types import LLAMA3_8B, QWEN3_8B, ROWS
from .parts import PARTS, FigureJournal, KernelOptions, planned, run_part

Rows = Mapping[str, Mapping[str, Any]]

HEAD_LIMIT = 0.45  # best dynamic head over static 32k
GATHER_RATIO = 6.0  # gather + matmul over indexed_logits
COPY_SHARE = 0.80  # of the measured copy bandwidth
PLAIN_SHARE, CYCLE_SHARE = 0.90, 0.85  # of the byte roofline
SHORTLIST = 2048
VOCABS = (LLAMA3_8B.vocab, QWEN3_8B.vocab)


def goals(parts: Mapping[str, Rows], shapes: Sequence[str], *, real: bool) -> list[dict[str, Any]]:
    """All goals, one row each.

    Args:
        parts: part -> name of a figure -> its row.
        shapes: models of the cycle.
        real: the figures are a GPU's, of real sizes; else every goal is open whatever stands there.

    Returns:
        rows with ``goal``, ``where``, ``relation`` (``at most`` or ``at least``), ``bound``, ``measured`` (None where
        open), ``by`` (what reached the figure), ``state``: ``reached``, ``missed`` or ``open``.
    """
    found = []
    for goal, where, relation, bound, figure in _goals(parts, shapes):
        measured, by = figure if real and figure is not None else (None, None)
        state = "open"
        if measured is not None:
            met = measured <= bound if relation == "at most" else measured >= bound
            state = "reached" if met else "missed"
        row = {"goal": goal, "where": where, "relation": relation, "bound": bound}
        found.append({**row, "measured": measured, "by": by, "state": state})
    return found


# What was measured, and by which case.
_Reached = tuple[float, str] | None


def _goals(
    parts: Mapping[str, Rows], shapes: Sequence[str]
) -> Iterator[tuple[str, str, str, float, _Reached]]:
    heads = [row for row in parts.get("heads", {}).values() if "timing" in row]
    ops = [row for row in parts.get("ops", {}).values() if "timing" in row]
    places = [(vocab, rows) for vocab in VOCABS for rows in ROWS]
    for vocab, rows in places:
        where = f"V = {vocab:,}, N = {rows}"
        here = [row for row in heads if (row["sizes"]["V"], row["sizes"]["N"]) == (vocab, rows)]
        for name, kind in (("best dynamic head", "head"), ("best ranker head", "head ranker")):
            yield f"time of the {name} over static 32k", where, "at most", HEAD_LIMIT, _dynamic(here, kind)
    for vocab, rows in places:
        where, sizes = (
            f"V = {vocab:,}, N = {rows}, k = {SHORTLIST:,}",
            {"V": vocab, "N": rows, "k": SHORTLIST},
        )
        those = [
            row for row in ops if row["op"] == "indexed_logits" and row["sizes"].items() >= sizes.items()
        ]
        gathered = [
            (way["ratio"], row["case"])
            for row in those
            for name, way in row["baselines"].items()
            if "gather" in name and "ratio" in way
        ]
        copied = [(row["share"], row["case"]) for row in those if row["bound"] == "bytes"]
        # The lowest of several cases (rows that share candidates, and rows that do not): a goal holds for all.
        name = "gather + matmul over indexed_logits"
        yield name, where, "at least", GATHER_RATIO, min(gathered, default=None)
        name = "indexed_logits, share of the copy bandwidth, each distinct row counted once"
        yield name, where, "at least", COPY_SHARE, min(copied, default=None)
    cycle = list(parts.get("cycle", {}).values())
    for shape in shapes:
        for kind, name, bound in (
            ("plain", "plain decoding", PLAIN_SHARE),
            ("cycle", "speculative cycle", CYCLE_SHARE),
        ):
            those = [row for row in cycle if row["name"].startswith(f"{shape}: {kind}")]
            best = min(those, key=lambda row: float(row["ms"]), default=None)
            reached = None if best is None else (best["share"], best["by"])
            yield f"{name}, share of the byte roofline", shape, "at least", bound, reached


def _dynamic(rows: Sequence[Mapping[str, Any]], kind: str) -> _Reached:
    """The smallest time of a dynamic head of this kind over the static head's, in whichever form that is faster.

    A scorer in fp8 does not count: its candidates are others.
    """
    static = [row["timing"]["us"] for row in rows if row["op"] == "head static"]
    dynamic = [
        (row["timing"]["us"], row["case"])
        for row in rows
        if row["op"].startswith(kind) and row["sizes"]["dynamic"] and not row["sizes"]["fp8"]
    ]
    if not static or not dynamic:
        return None
    best, case = min(dynamic)
    return best / min(static), case


_ROOT = Path(__file__).resolve().parents[3]
_SOURCES = (".py", ".cu", ".cuh", ".h", ".cpp")


def machine_facts(device: str) -> dict[str, Any]:
    """Machine, GPU, driver, torch, compiler, revision, hash of the sources and date, as plain JSON values."""
    import torch

    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": git_revision(),
        "sources": sources_hash(_ROOT),
        **describe_environment(device=device, dtype="bfloat16"),
        "torch_cuda": torch.version.cuda,
        "nvcc": _nvcc(),
    }
    if device != "cpu":
        facts["gpu_memory"] = torch.cuda.get_device_properties(device).total_memory
        facts["driver"] = program_output(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        )
    return facts


def sources_hash(root: Path) -> str:
    """SHA-256 of package and kernels: tells what was measured where there is no repository."""
    digest = hashlib.sha256()
    paths = [path for folder in ("vocabforge", "kernels") for path in (root / folder).rglob("*")]
    for path in sorted(path for path in paths if path.suffix in _SOURCES and "build" not in path.parts):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def no_device(device: str) -> str | None:
    """Why this device cannot be used, or None."""
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        return f"no device {device}: {str(error).splitlines()[0]}"
    return None


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    told = program_output([shutil.which("nvcc") or f"{home}/bin/nvcc", "--version"])
    found = re.search(r"release ([\d.]+)", told or "")
    return found.group(1) if found else None


SCHEMA, SCHEMA_VERSION = "vocabforge.bench-kernels", 1
REAL = KernelOptions()
SMALL = KernelOptions("cpu", ("small",), (1,), (), "auto", measure=0.001, budget=60.0)
# Shares of the time in which parts run on a GPU.
SHARES = {"ops": 0.4, "heads": 0.3, "drafting": 0.12, "cycle": 0.18}

Runner = Callable[[str, KernelOptions], FigureJournal]


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


def in_process(part: str, options: KernelOptions) -> FigureJournal:
    """Run one part here."""
    journal = FigureJournal(deadline=time.monotonic() + options.budget)
    try:
        run_part(part, options, journal)
    except Exception as error:  # noqa: BLE001 (what was measured stays, and the other parts follow)
        journal.leave(f"{part}: the rest", f"{type(error).__name__}: {error}")
    return journal


def measure(options: KernelOptions, parts: Sequence[str], run: Runner) -> dict[str, Any]:
    """Ceilings first, then the parts, each within its share of ``options.budget``.

    Returns:
        ``schema``, ``schema_version``, ``machine``, ``options``, ``ceilings``, ``parts`` (part -> name -> row),
        ``not_real`` (why these are not the wanted figures, or None), ``goals``, ``open`` (part -> name of a wanted
        figure that was not measured -> why), ``failed`` (part -> name -> what went wrong).
    """
    from .timing import measure_ceilings

    for part in parts:
        check_known(part, PARTS, "part")
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


def why_not_real(options: KernelOptions) -> str | None:
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


def open_figures(journals: Mapping[str, FigureJournal], not_real: str | None) -> dict[str, dict[str, str]]:
    """Every wanted figure (``REAL``) that was not measured, and why.

    Args:
        journals: of the parts that ran.
        not_real: why none of them counts, or None.
    """
    found: dict[str, dict[str, str]] = {}
    for part, names in planned(REAL).items():
        journal = journals.get(part, FigureJournal())
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


def failures(journals: Mapping[str, FigureJournal]) -> dict[str, dict[str, str]]:
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
    from .cases import OP_BENCHES
    from .cases.types import SHAPES

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
        for name in values.get(key, ()):
            check_known(name, table, key[:-1])
    return values
