"""Measure ops, draft heads and decode cycles against their floors, for ``kernels/gpu_check.py``: needs torch only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from vocabforge.core.errors import VocabForgeError
from vocabforge.core.provenance import git_revision, program_output
from vocabforge.evaluate.run.environment import describe_environment
from vocabforge.ops.backend import library_facts

from .parts import NO_TIME, FigureJournal, KernelOptions
from .timing import measure_ceilings

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (".py", ".cu", ".cuh", ".h", ".cpp")


def machine_facts(device: str) -> dict[str, Any]:
    """Return machine, GPU, driver, torch, compiler, revision, source hash and date, as plain JSON values."""
    import torch

    facts = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": git_revision(),
        "sources": sources_hash(_ROOT),
        **describe_environment(device=device, dtype="bfloat16"),
        "torch_cuda": torch.version.cuda,
        "nvcc": _nvcc(),
        "dependent_launches": os.environ.get("VOCABFORGE_PDL") == "1",
    }
    if device != "cpu":
        facts["gpu_memory"] = torch.cuda.get_device_properties(device).total_memory
        facts["driver"] = program_output(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        )
    return facts


def sources_hash(root: Path) -> str:
    """Return the SHA-256 of package and kernels, which identifies the code outside a repository."""
    digest = hashlib.sha256()
    paths = [path for folder in ("vocabforge", "kernels") for path in (root / folder).rglob("*")]
    for path in sorted(path for path in paths if path.suffix in _SOURCES and "build" not in path.parts):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    told = program_output([shutil.which("nvcc") or f"{home}/bin/nvcc", "--version"])
    found = re.search(r"release ([\d.]+)", told or "")
    return found.group(1) if found else None


REAL = KernelOptions()
SMALL = KernelOptions("cpu", ("small",), (1,), (), "auto", measure=0.001, budget=60.0)
# Share of the time budget per part on a GPU.
SHARES = {"ops": 0.45, "heads": 0.35, "cycle": 0.2}

Runner = Callable[[str, KernelOptions], FigureJournal]


def measure(options: KernelOptions, parts: Sequence[str], run: Runner) -> dict[str, Any]:
    """Measure the device ceilings, then the parts, each within its share of ``options.budget``.

    Returns:
        ``options``, ``ceilings``, ``parts`` (part -> name -> row), ``not_real`` (why the figures do not
        represent a GPU at real sizes, or None), ``open`` (part -> name of an unmeasured figure -> reason),
        ``failed`` (part -> name -> error).
    """
    ceilings = measure_ceilings(options.protocol())
    options = replace(options, ceilings=ceilings)
    end, waiting = time.monotonic() + options.budget, sum(SHARES[part] for part in parts)
    journals = {}
    for part in parts:
        share = max(0.0, end - time.monotonic()) * SHARES[part] / waiting
        waiting -= SHARES[part]  # unused time goes to the other parts
        journals[part] = run(part, replace(options, budget=share))
    return {
        "options": options.to_dict(),
        "ceilings": ceilings.to_dict(),
        "parts": {part: journal.rows for part, journal in journals.items()},
        "not_real": why_not_real(options),
        "open": {part: journal.open for part, journal in journals.items() if journal.open},
        "failed": failures(journals),
    }


def why_not_real(options: KernelOptions) -> str | None:
    """Return why the figures do not represent compiled kernels on a GPU at real sizes, or None."""
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


def failures(journals: Mapping[str, FigureJournal]) -> dict[str, dict[str, str]]:
    """Return our wrong results, and figures not measured for a reason other than time."""
    found: dict[str, dict[str, str]] = {}
    for part, journal in journals.items():
        wrong: dict[str, str] = {}
        for name, row in journal.rows.items():
            told = {**row.get("problems", {}), **row.get("graph_problems", {})}
            if told:
                wrong[name] = "; ".join(f"{kind}: {text}" for kind, text in told.items())
        wrong |= {name: why for name, why in journal.open.items() if why != NO_TIME}
        if wrong:
            found[part] = wrong
    return found
