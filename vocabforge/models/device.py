"""Choice of the device that a command runs on."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable

import torch

from ..core.errors import UsageError


def choose_device(name: str | None, *, elsewhere: bool = False) -> torch.device:
    """Return the named device; ``auto`` or None means CUDA if available.

    With ``elsewhere``, workers on other machines compute; they may have GPUs even if this machine has none.

    Under `accelerate launch --cpu`, ``auto`` and None mean the CPU.

    Raises:
        UsageError: an unknown or unsupported device, or a CUDA device that is not available.
    """
    if elsewhere and name in (None, "auto", "cuda"):
        return torch.device("cuda")
    if name in (None, "auto"):
        on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
        return torch.device("cuda" if torch.cuda.is_available() and not on_cpu else "cpu")
    try:
        device = torch.device(str(name))
    except RuntimeError as error:
        raise _unknown(name) from error
    if device.type not in ("cpu", "cuda"):
        raise _unknown(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "no CUDA device is available",
            got=name,
            remedy="use the device cpu, or check the driver (vocabforge doctor)",
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            "there is no CUDA device of this number",
            got=name,
            expected=f"cuda:0 to cuda:{torch.cuda.device_count() - 1}",
        )
    return device


@functools.cache
def has_triton() -> bool:
    """Return whether torch can compile CUDA kernels here."""
    return importlib.util.find_spec("triton") is not None


def _unknown(name: str | None) -> UsageError:
    return UsageError("there is no such device", got=name, expected="auto, cpu, cuda or cuda:N")


def synchroniser(device: str) -> Callable[[], None]:
    """Return a function that waits for a device; a no-op for a CPU."""
    if not device.startswith("cuda"):
        return lambda: None
    return lambda: torch.cuda.synchronize(device)
