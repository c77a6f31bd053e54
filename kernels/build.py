"""Build the kernels: `python kernels/build.py` or `make kernels`. Needs g++, and nvcc for CUDA, but no GPU.

The same sources produce three libraries:

- native: CUDA kernels for compute capability 8.0 and 9.0a (and PTX for later GPUs), each with a CPU
  implementation, in ``vocabforge/ops/lib``. One build works with every Python version, with or without CUDA
  in torch.
- native without nvcc (``--cpu``): only the CPU implementations.
- emulated (``--emulator``): the CUDA sources compiled by g++ against ``kernels/emulator``, for tests. Each
  folder has a separate library, so a test builds only what it runs.

Object files are cached in ``kernels/build`` and rebuilt when one of their inputs changes.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
# kernels/ is a sibling of the package in the repository and part of the package in a wheel.
PACKAGE = ROOT.parent if (ROOT.parent / "ops").is_dir() else ROOT.parent / "vocabforge"
NATIVE = PACKAGE / "ops" / "lib" / "libvocabforge_ops.so"
ARCHITECTURES = ("80", "90a")
_FLAGS = {"native": ("-O3",), "cpu": ("-O3", "-DVF_NO_CUDA"), "emulated": ("-O1", "-DVF_EMULATE")}
# The sanitizer's memory hooks call the emulator (no sanitizer runtime is linked). Without unique symbols,
# every library has separate static shared memory.
_WATCHED = ("-fsanitize=thread", "-fno-gnu-unique")
# Selected when an op is called, so one library supports several CPUs.
_PROCESSOR = {"base": ("-O3", "-Wno-psabi"), "v3": ("-O3", "-march=x86-64-v3")}
_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"  # stable ABI of torch 2.11; later versions load it


class BuildError(Exception):
    """A compiler is missing or has failed; the message is shown to the user."""


def find_nvcc() -> str | None:
    """Find nvcc in ``CUDA_HOME``, on the path, or in the default install location."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    places = [home and f"{home}/bin/nvcc", shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    return next((place for place in places if place and Path(place).is_file()), None)


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
    release = re.search(r"release (\d+\.\d+)", text)
    return release[1] if release else "of unknown version"


@dataclass(frozen=True)
class Unit:
    """An object file: its source and the compile command without ``-o``."""

    source: Path
    variant: str
    command: tuple[str, ...]

    @property
    def object(self) -> Path:
        name = f"{self.source.parent.name}_{self.source.stem}_{self.source.suffix[1:]}.o"
        return BUILD / self.variant / name


def op_folders() -> list[Path]:
    """Return the folders with ops, i.e. those with a binding."""
    return sorted(path.parent for path in ROOT.glob("*/binding.cpp"))


def _units(
    variant: str, folders: Sequence[Path], nvcc: str | None = None, architectures: Sequence[str] = ()
) -> list[Unit]:
    (includes, _), flags = torch_folders(), _FLAGS[variant]
    host = (find_compiler(), "-std=c++17", "-fPIC", "-Wall", "-MMD")
    units: list[Unit] = []
    for folder in folders:
        units.append(Unit(folder / "binding.cpp", variant, (*host, *flags, "-O1", "-w", _ABI, *includes)))
        for source in sorted(folder.glob("*.cpp")):
            if folder.name == "cpu" and source.name != "binding.cpp":
                if source.stem != "v3" or platform.machine() in ("x86_64", "AMD64"):
                    units.append(Unit(source, variant, (*host, *_PROCESSOR[source.stem])))
            elif source.name != "binding.cpp":
                units.append(Unit(source, variant, (*host, "-O3", "-ffp-contract=off")))
        if variant == "emulated":
            command = (*host, *flags, *_WATCHED, "-x", "c++")
            units += [Unit(source, variant, command) for source in sorted(folder.glob("*.cu"))]
        elif variant == "native":
            assert nvcc is not None
            cuda = (*_nvcc(nvcc), *_cuda_flags(architectures))
            units += [Unit(source, variant, cuda) for source in sorted(folder.glob("*.cu"))]
    if variant == "emulated":
        sources = sorted((ROOT / "emulator").glob("*.cpp"))
        units += [Unit(source, variant, (*host, "-O1")) for source in sources]
    return units


def _nvcc(nvcc: str) -> tuple[str, ...]:
    """Return the nvcc command, with the host compiler from ``CXX``: nvcc may not support the default g++."""
    return (nvcc, "-ccbin", find_compiler()) if os.environ.get("CXX") else (nvcc,)


def _cuda_flags(architectures: Sequence[str]) -> tuple[str, ...]:
    """Return flags for machine code of each architecture and PTX of the first, for later devices."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures[1:]]
    first = architectures[0]
    codes.append(f"-gencode=arch=compute_{first},code=[sm_{first},compute_{first}]")
    return ("-std=c++17", "-O3", "-Xcompiler", "-fPIC", "-MMD", "-Xptxas", "-v", "-lineinfo", *codes)


def _compile(unit: Unit) -> bool:
    """Compile an object if it is out of date and return whether it was compiled.

    Raises:
        BuildError: the compiler failed.
    """
    target = unit.object
    target.parent.mkdir(parents=True, exist_ok=True)
    stamp = target.with_suffix(".key")
    dependencies = target.with_suffix(".d")
    if target.is_file() and stamp.is_file() and stamp.read_text() == _key(unit, dependencies):
        return False
    stamp.unlink(missing_ok=True)
    command = [*unit.command, "-MF", str(dependencies), "-c", str(unit.source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        failed = f"{unit.command[0]} ended with {done.returncode}"
        where = f"{unit.source.relative_to(ROOT)} does not compile ({unit.variant}, {failed})"
        raise BuildError(f"{where}:\n{done.stderr.strip()}")
    target.with_suffix(".log").write_text(done.stderr)
    stamp.write_text(_key(unit, dependencies))
    return True


def _key(unit: Unit, dependencies: Path) -> str:
    """Hash the command and the contents of all files read by the compiler."""
    digest = hashlib.sha256(" ".join(unit.command).encode())
    if dependencies.is_file():
        names = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1].split()
        for name in sorted(set(names)):
            path = Path(name)
            # For files of the compiler and torch the name is enough: a new version has another path.
            if path.is_relative_to(ROOT) or ".." in path.parts:
                digest.update(path.read_bytes() if path.is_file() else b"?")
            digest.update(name.encode())
    return digest.hexdigest()


def build(variant: str = "native", *, architectures: Sequence[str] | None = None) -> Path:
    """Build the package's library, ``native`` or ``cpu``, unless it is up to date.

    Args:
        architectures: compute capabilities; default: those of the existing library, or all.

    Returns:
        Path of the library.

    Raises:
        BuildError: a compiler is missing or has failed.
    """
    nvcc = find_nvcc() if variant == "native" else None
    if variant == "native" and nvcc is None:
        raise BuildError(
            "no nvcc: install the CUDA toolkit (12.4 or newer) or set CUDA_HOME; `make kernels-cpu` builds the CPU "
            "implementations alone"
        )
    with _only_one():
        asked = list(architectures or (_facts(NATIVE) or {}).get("architectures") or ARCHITECTURES)
        units = _units(variant, op_folders(), nvcc, asked)
        facts = {"variant": variant, "architectures": asked if nvcc else []}
        _make(NATIVE, units, facts | {"nvcc": nvcc_version(nvcc) if nvcc else None}, nvcc)
    return NATIVE


def build_emulated(names: Sequence[str] | None = None) -> list[Path]:
    """Build the emulated libraries of the given folders (default: all), unless they are up to date.

    Returns:
        Paths of the libraries.

    Raises:
        BuildError: a folder does not exist, or the compiler is missing or has failed.
    """
    cuda = [folder for folder in op_folders() if any(folder.glob("*.cu"))]
    folders = cuda if names is None else [ROOT / name for name in names]
    for folder in folders:
        if not (folder / "binding.cpp").is_file():
            raise BuildError(f"no op in {folder}: expected binding.cpp there")
    libraries = {folder: BUILD / "emulated" / f"lib{folder.name}.so" for folder in folders}
    with _only_one():
        _compile_all(_units("emulated", folders))
        for folder, library in libraries.items():
            _make(library, _units("emulated", [folder]), {"variant": "emulated"}, None)
    return list(libraries.values())


def _compile_all(units: Sequence[Unit]) -> int:
    """Compile large folders first, for an even load, and return the number of objects compiled."""
    weights = {
        folder: sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        for folder in {unit.source.parent for unit in units}
    }
    ordered = sorted(units, key=lambda unit: (unit.source.suffix != ".cu", -weights[unit.source.parent]))
    with ThreadPoolExecutor(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    ) as pool:
        return sum(pool.map(_compile, ordered))


def _make(library: Path, units: Sequence[Unit], facts: dict[str, Any], nvcc: str | None) -> None:
    made = _compile_all(units)
    keys = sorted(unit.object.with_suffix(".key").read_text() for unit in units)
    facts = facts | {"sources": hashlib.sha256("".join(keys).encode()).hexdigest()}
    before = _facts(library)
    if made or before != facts:
        if before and before.get("nvcc") and not facts.get("nvcc") and library == NATIVE:
            print(
                "the CUDA kernels that were built before are replaced by CPU implementations", file=sys.stderr
            )
        _link(library, [unit.object for unit in units], nvcc)
        facts["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
        library.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{library}: {made} of {len(units)} objects made", file=sys.stderr)


def _facts(library: Path) -> dict[str, Any] | None:
    """Return the metadata stored with a library, or None if either file is missing or modified."""
    try:
        facts: dict[str, Any] = json.loads(library.with_suffix(".json").read_text())
        whole = facts.pop("sha256") == hashlib.sha256(library.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return facts if whole else None


def _link(library: Path, objects: Sequence[Path], nvcc: str | None) -> None:
    """Link to a temporary name and rename, so processes that use the old library keep it."""
    library.parent.mkdir(parents=True, exist_ok=True)
    _, torch_libraries = torch_folders()
    fresh = library.with_suffix(f".{os.getpid()}.tmp")
    needed = ["-ltorch", "-ltorch_cpu", "-lc10"]
    if nvcc is not None:
        command = [*_nvcc(nvcc), "-shared", "-cudart", "static", "-Xlinker", "--no-as-needed"]
    else:
        command = [find_compiler(), "-shared", "-Wl,--no-as-needed", "-Wl,-Bsymbolic"]
    command += [*map(str, objects), "-o", str(fresh), f"-L{torch_libraries}", *needed]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{library.name} does not link:\n{done.stderr.strip()}")
    fresh.replace(library)


@contextmanager
def _only_one() -> Iterator[None]:
    """Hold a lock on this folder, waiting for other builds to finish."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the kernels.")
    parser.add_argument(
        "--cpu", action="store_true", help="build only the CPU implementations; does not need nvcc"
    )
    parser.add_argument(
        "--emulator", action="store_true", help="build the CUDA sources for the CPU, for tests"
    )
    parser.add_argument("--only", action="append", help="with --emulator: name of a folder [all]")
    parser.add_argument(
        "--arch",
        action="append",
        help=f"compute capability, as 90a; default: as before, at first {' '.join(ARCHITECTURES)}",
    )
    asked = parser.parse_args()
    if asked.only and not asked.emulator:
        parser.error("--only goes with --emulator: the package's library holds all ops")
    try:
        if asked.emulator:
            build_emulated(asked.only)
        else:
            build("cpu" if asked.cpu else "native", architectures=asked.arch)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
