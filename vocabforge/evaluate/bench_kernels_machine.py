"""What figures of a GPU were measured on, and with which sources."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..core.provenance import git_revision, program_output
from .environment import describe_environment

_ROOT = Path(__file__).resolve().parents[2]
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
