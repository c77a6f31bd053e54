"""What this process may use of the machine: containers often grant less than the hardware has."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Cores that the scheduler grants: the affinity mask and, where there is one, the container's quota."""
    try:
        cores = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on this system
        cores = float(os.cpu_count() or 1)
    quota = _words(cgroup / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def free_memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can still be taken: the system's, or what the container's limit leaves. None if unknown."""
    found = []
    fields = dict(line.split(":", 1) for line in _text(meminfo).splitlines() if ":" in line)
    if "MemAvailable" in fields:
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    limit, used = _words(cgroup / "memory.max"), _words(cgroup / "memory.current")
    if limit and used and limit[0].isdigit() and used[0].isdigit():
        found.append(max(0, int(limit[0]) - int(used[0]) + _reclaimable(cgroup)))
    return min(found) if found else None


def _reclaimable(cgroup: Path) -> int:
    """File cache counts as used, and goes when memory is needed."""
    fields = dict(line.split() for line in _text(cgroup / "memory.stat").splitlines() if line.count(" ") == 1)
    return int(fields.get("inactive_file", 0))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError:
        return ""


def _words(path: Path) -> list[str]:
    return _text(path).split()
