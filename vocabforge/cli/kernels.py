"""``vocabforge kernels build``: compile the kernels included in VocabForge."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal

import typer

from ..core.config import StrictModel, option, shipped
from ..core.errors import VocabForgeError
from .app import JsonOption, print_json


class KernelsRequest(StrictModel):
    """The kernels to compile, and how."""

    action: Literal["build"] = option(
        ..., "**build** compiles them, into the installed package.", positional=True
    )
    cpu: bool = option(False, "CPU implementations only; needs g++, no nvcc.")
    arch: tuple[str, ...] = option(
        (), "CUDA compute capability, such as 90a [default: as before, at first 80 and 90a].", many=True
    )


def kernels(asked: KernelsRequest, as_json: JsonOption = False) -> None:
    """Compile the kernels: CUDA for GPUs, and faster loops for CPUs.

    Needs g++ and, unless --cpu is given, nvcc (CUDA 12.4 or newer). Needs no GPU. Without kernels, decoding
    runs in PyTorch and is slower. Only changed files are compiled.

    Example: `vocabforge kernels build --cpu`
    """
    from ..ops.backend import LIBRARY

    folder = shipped("kernels")
    if not os.access(folder, os.W_OK):
        raise VocabForgeError(
            "the kernels cannot be written where VocabForge is installed",
            got=f"no write permission in {folder}",
            remedy="install VocabForge in a virtual environment of your own",
        )
    words = [sys.executable, str(folder / "build.py"), *(["--cpu"] if asked.cpu else [])]
    words += [word for arch in asked.arch for word in ("--arch", arch)]
    if subprocess.run(words, check=False).returncode != 0:
        raise typer.Exit(1)
    if as_json:
        print_json({"library": str(LIBRARY)})
