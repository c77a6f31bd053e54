"""Machine-related helpers of training: device, threads, memory allocation, signals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..core.console import say
from ..core.distributed import local_rank, local_world_size, world_size
from ..core.threads import core_count, user_threads
from ..models.device import choose_device
from .config import TrainConfig

# glibc's <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@contextlib.contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Set the yielded event on SIGINT or SIGTERM for a clean stop; a second signal interrupts at once."""
    flag = threading.Event()

    def handle(number: int, _frame: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()
        say("Stopping after this step; a checkpoint will be written.")

    try:
        old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: leave the signals alone
        yield flag
        return
    try:
        yield flag
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def device_of(config: TrainConfig) -> torch.device:
    """Return this process's device; under a launcher each process uses its own GPU."""
    device = choose_device(config.run.device)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank()) if world_size() > 1 else device
        torch.cuda.set_device(device)
    return device


def uses_bf16(config: TrainConfig, device: torch.device) -> bool:
    """Return whether passes use bf16 autocast; not by default on a CPU, where bf16 may be 100x slower."""
    wanted = config.run.mixed_precision
    return wanted == "bf16" or (
        wanted == "auto" and (device.type == "cuda" or config.memory.weights == "bf16")
    )


def threads_given(config: TrainConfig) -> bool:
    """Return whether the user set the number of threads; a launcher's setting is ignored."""
    launched = local_world_size() > 1 or "ACCELERATE_MIXED_PRECISION" in os.environ
    return config.run.threads is not None or (user_threads() and not launched)


def set_threads(config: TrainConfig) -> None:
    """Set the number of threads: ``run.threads``, OMP_NUM_THREADS, or this process's share of the cores."""
    count = config.run.threads
    if count is None and threads_given(config):
        count = torch.get_num_threads()
    elif count is None:
        count = core_count() // local_world_size()
    torch.set_num_threads(max(1, count))
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks: page faults take about a tenth of a CPU training step."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
