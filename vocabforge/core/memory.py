"""How much memory this process has held at most."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def peak_memory() -> int | None:
    """Highest resident memory of this process so far in bytes, mapped files included; None where it is not known."""
    try:
        found = _PEAK.search(Path("/proc/self/status").read_text("utf-8"))
    except OSError:
        found = None
    if found is not None:  # getrusage would include the parent's memory at the time of the fork
        return int(found.group(1)) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
