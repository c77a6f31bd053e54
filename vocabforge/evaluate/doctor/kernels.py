"""The compiled kernels: there, for this device, and loadable."""

from __future__ import annotations

from typing import Any

from .checks import Finding

_BUILD = "build them with `make kernels` on this machine"


def check_kernels(torch: Any) -> Finding[None]:
    """Without them everything runs in PyTorch: slower on a GPU, the same on the CPU."""
    from ...ops.backend import library_facts

    device = torch.cuda.is_available()
    facts = library_facts()
    if facts is None:
        if device:
            return Finding("not built: every operation runs in PyTorch", "warning", _BUILD)
        return Finding("not built (optional: only a GPU runs them)", "skipped")
    architectures = [str(one) for one in facts.get("architectures") or ()]
    found = "built for " + (", ".join(f"sm_{one}" for one in architectures) or "the CPU")
    if not device:
        return Finding(f"{found}; no device here runs them")
    if facts.get("variant") != "native" or not architectures:
        return Finding(f"{found} alone, while there is a device", "warning", _BUILD)
    major, minor = torch.cuda.get_device_capability()
    lowest = int(architectures[0].rstrip("af"))  # later devices translate its intermediate code
    if 10 * major + minor < lowest:
        return Finding(f"{found}, but the device is sm_{major}{minor}", "warning", _BUILD)
    return Finding(f"{found}, which the device runs")
