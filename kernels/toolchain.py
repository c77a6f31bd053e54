"""Locate the toolchain of `kernels/build.py`: g++, nvcc, and torch's headers and libraries."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path


class BuildError(Exception):
    """A compiler is missing or has failed; the message is shown to the user."""


def find_nvcc() -> str | None:
    """Find nvcc in ``CUDA_HOME``, on the path, or in the default install location."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [Path(home) / "bin" / "nvcc"] if home else []
    found = shutil.which("nvcc")
    places += [Path(found)] if found else []
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    return next((str(place) for place in places if place.is_file()), None)


def find_compiler() -> str:
    """Find the host's C++ compiler.

    Raises:
        BuildError: no compiler was found.
    """
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise BuildError("no C++ compiler: install g++ (apt-get install g++), or name one in CXX")
    return compiler


def torch_folders() -> tuple[list[str], Path]:
    """Return include options and torch's library folder, without importing torch."""
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(
            "torch is not installed for this Python: run `make setup`, or name another with PYTHON=..."
        )
    base = Path(spec.origin).parent
    include = base / "include"
    if not (include / "torch" / "csrc" / "stable" / "library.h").is_file():
        raise BuildError(f"this torch has no stable C++ interface ({include}); 2.11 or newer is needed")
    return [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"], base / "lib"


def nvcc_version(nvcc: str) -> str:
    """Return the version, such as ``13.0``."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", text)
    return found.group(1) if found else "of unknown version"
