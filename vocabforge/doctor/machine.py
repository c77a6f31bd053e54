"""Checks of the machine and the installed software; containers often grant less than the hardware has."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from ..core.provenance import program_output
from ..core.threads import usable_cores
from .checks import Finding, Report

GROUP = "environment"
_GIB = 2**30
_LITTLE_MEMORY, _LITTLE_DISK = 2 * _GIB, 5 * _GIB


def check_environment(report: Report) -> Any:
    """Add the rows of the environment; return torch, or None if it does not work."""
    report.run(GROUP, "Python", check_python)
    torch = report.run(GROUP, "torch", check_torch)
    report.run(GROUP, "CUDA", check_cuda, torch)
    report.run(GROUP, "nvcc", check_nvcc, torch)
    report.run(GROUP, "kernels", check_kernels, torch)
    for name in ("transformers", "tokenizers", "accelerate", "safetensors"):
        report.run(GROUP, name, check_package, name)
    report.run(GROUP, "cores and threads", check_threads, torch)
    report.run(GROUP, "memory", check_memory)
    report.run(GROUP, "disk", check_disk)
    return torch


def check_python() -> Finding[None]:
    return Finding(
        f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    )


def check_torch() -> Finding[Any]:
    """Check torch by importing it, because a broken build fails only when it loads its libraries."""
    import torch

    wanted = _outside_wanted("torch", torch.__version__)
    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    if getattr(torch.version, "hip", None):
        build = f"ROCm {torch.version.hip} build"
    summary = f"{torch.__version__}, {build}"
    if wanted:
        return Finding(f"{summary}; {wanted}", "warning", "install a version inside that range", torch)
    return Finding(summary, value=torch)


def check_package(name: str) -> Finding[None]:
    """Check that a required package is installed in a supported version."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        return Finding("not installed", "failed", "install VocabForge's requirements (make setup)")
    wanted = _outside_wanted(name, installed)
    if wanted:
        return Finding(f"{installed}; {wanted}", "warning", "install a version inside that range")
    return Finding(installed)


def _outside_wanted(name: str, installed: str) -> str | None:
    """Return a message if ``installed`` is outside the version range that VocabForge requires, or None."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in requires("vocabforge") or ()]
    except PackageNotFoundError:  # run from a source tree
        return None
    for requirement in wanted:
        if requirement.name == name and requirement.marker is None:
            inside = requirement.specifier.contains(installed, prereleases=True)
            return None if inside else f"outside the supported {requirement.specifier}"
    return None


def check_cuda(torch: Any) -> Finding[None]:
    driver = _driver()
    if torch.cuda.is_available():
        return _check_devices(torch, driver)
    if driver is None:
        return Finding("no driver and no device: everything runs on the CPU")
    if torch.version.cuda is None:
        return Finding(
            f"{driver}, but torch is a CPU build",
            "warning",
            "install a CUDA build of torch to use the device (make setup chooses one)",
        )
    return Finding(
        f"{driver}, but torch (CUDA {torch.version.cuda}) finds no device",
        "warning",
        "the driver may be too old for this build, or CUDA_VISIBLE_DEVICES may hide the device",
    )


def _check_devices(torch: Any, driver: str | None) -> Finding[None]:
    names = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        names.append(f"{facts.name} ({facts.total_memory / _GIB:.0f} GiB, sm_{facts.major}{facts.minor})")
        try:
            torch.ones(8, device=f"cuda:{index}").sum().item()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            return Finding(
                f"{names[-1]} does not compute: {reason}",
                "failed",
                "install a torch build that supports this device, or free its memory",
            )
    return Finding(f"{', '.join(names)}; {driver or 'unknown driver'}")


def _driver() -> str | None:
    if shutil.which("nvidia-smi"):
        told = program_output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        if told and re.match(r"\d+\.\d+", told):
            return f"driver {told.splitlines()[0]}"
    try:
        text = Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return None
    match = re.search(r"Kernel Module\D*([\d.]+)", text)
    return f"driver {match[1]}" if match else "driver of unknown version"


def check_nvcc(torch: Any) -> Finding[None]:
    folders = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [str(Path(folder, "bin")) for folder in folders if folder]
    nvcc = next(
        (compiler for place in [*places, None] if (compiler := shutil.which("nvcc", path=place))), None
    )
    if nvcc is None:
        return Finding("not found (optional: only compiling CUDA kernels needs it)", "skipped")
    told = program_output([nvcc, "--version"])
    release = re.search(r"release (\d+)\.(\d+)", told or "")
    if release is None:
        return Finding(f"{nvcc} does not print its version", "warning", "check the CUDA toolkit")
    summary = f"{release[1]}.{release[2]} ({nvcc})"
    built = torch.version.cuda
    if built and built.split(".")[0] != release[1]:
        return Finding(
            f"{summary}, but torch was built with CUDA {built}",
            "warning",
            f"kernels need a CUDA {built.split('.')[0]} toolkit: set CUDA_HOME to one",
        )
    return Finding(summary)


def check_threads(torch: Any) -> Finding[None]:
    """Check that torch uses as many threads as there are usable cores."""
    usable, threads = usable_cores(), torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS")
    summary = f"{usable:g} of {os.cpu_count()} cores usable, torch runs {threads} threads"
    summary += f" (OMP_NUM_THREADS={setting})" if setting else ""
    if threads > max(1, round(usable)):
        return Finding(
            summary,
            "warning",
            f"more threads than cores slow each other down: set OMP_NUM_THREADS={max(1, int(usable))}",
        )
    if setting and threads < int(usable):
        return Finding(
            summary, "warning", f"cores stay idle: unset OMP_NUM_THREADS or set it to {int(usable)}"
        )
    return Finding(summary)


def check_memory() -> Finding[None]:
    free = free_memory()
    if free is None:
        return Finding("the free memory of this system is unknown", "skipped")
    summary = f"{free / _GIB:.1f} GiB free"
    if free < _LITTLE_MEMORY:
        return Finding(summary, "warning", "only very small targets fit: close other programs")
    return Finding(summary)


def check_disk() -> Finding[None]:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    summary = f"{free / _GIB:.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(f"{summary}, which is not writable", "warning", "choose an --output in another folder")
    if free < _LITTLE_DISK:
        return Finding(summary, "warning", "free some space: exports and checkpoints may not fit")
    return Finding(summary)


_CGROUP = Path("/sys/fs/cgroup")


def free_memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the available memory of the system or container in bytes; None if unknown."""
    amounts = []
    fields = dict(line.split(":", 1) for line in _text(meminfo).splitlines() if ":" in line)
    if "MemAvailable" in fields:
        amounts.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit, used = _words(cgroup / "memory.max"), _words(cgroup / "memory.current")
    if limit and used and limit[0].isdigit() and used[0].isdigit():
        amounts.append(max(0, int(limit[0]) - int(used[0]) + _reclaimable(cgroup)))
    return min(amounts) if amounts else None


def _reclaimable(cgroup: Path) -> int:
    """Return the size of the inactive file cache, which counts as used but can be reclaimed."""
    fields = dict(line.split() for line in _text(cgroup / "memory.stat").splitlines() if line.count(" ") == 1)
    return int(fields.get("inactive_file", 0))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()


_BUILD = "build them with `vocabforge kernels build` on this machine"


def check_kernels(torch: Any) -> Finding[None]:
    """Check the compiled kernels; without them everything runs in PyTorch, which is slower."""
    from ..ops.backend import library_facts

    device = torch.cuda.is_available()
    facts = library_facts()
    if facts is None:
        if device:
            return Finding("not built: every operation runs in PyTorch", "warning", _BUILD)
        return Finding("not built: fp32 models decode slower", "skipped", f"{_BUILD} (`--cpu` without nvcc)")
    architectures = [str(architecture) for architecture in facts.get("architectures") or ()]
    summary = "built for " + ", ".join([*(f"sm_{architecture}" for architecture in architectures), "the CPU"])
    if not device:
        return Finding(summary)
    if facts.get("variant") != "native" or not architectures:
        return Finding(f"{summary}, while there is a device", "warning", _BUILD)
    major, minor = torch.cuda.get_device_capability()
    lowest = int(architectures[0].rstrip("af"))  # newer devices compile its PTX
    if 10 * major + minor < lowest:
        return Finding(f"{summary}, but the device is sm_{major}{minor}", "warning", _BUILD)
    return Finding(f"{summary}, which the device runs")
