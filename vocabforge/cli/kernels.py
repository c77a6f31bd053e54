"""``vocabforge kernels build``: compile the kernels that come with VocabForge."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Annotated, Literal

import typer

from ..core.config import shipped
from ..core.errors import VocabForgeError
from .app import print_json


def kernels(
    action: Annotated[
        Literal["build"], typer.Argument(help="**build** compiles them, into the installed package.")
    ],
    cpu: Annotated[bool, typer.Option("--cpu", help="CPU implementations only; needs g++, no nvcc.")] = False,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", help="CUDA compute capability, such as 90a [default: 80 and 90a]."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Compilers at once [default: all cores].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
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
    words = [sys.executable, str(folder / "build.py"), *(["--cpu"] if cpu else [])]
    words += [word for one in arch or () for word in ("--arch", one)]
    words += [] if jobs is None else ["--jobs", str(jobs)]
    if subprocess.run(words, check=False).returncode != 0:
        raise typer.Exit(1)
    if as_json:
        print_json({"library": str(LIBRARY)})
