"""Describe the machine and software of a measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe_environment(*, device: str, dtype: str) -> dict[str, Any]:
    """Return machine, software and numeric settings as plain JSON values."""
    import torch

    facts: dict[str, Any] = {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": dtype,
        "device": device,
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
