"""What training asks of the machine: a device, threads, memory that is kept, signals, a clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch

from ..core.distributed import local_rank, local_world_size, world_size
from ..core.progress import say
from ..models.device import choose_device
from .config import TrainConfig

# glibc's <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class TokenClock:
    """Tokens a second of training proper; evaluation time is left out."""

    def __init__(self) -> None:
        self._tokens, self._start, self._pause = 0, time.monotonic(), 0.0
        self._lap = (0, 0.0)  # tokens and seconds at the last lap

    def add(self, tokens: int) -> None:
        """Tokens that were trained on since the last call."""
        self._tokens += tokens

    @property
    def seconds(self) -> float:
        """Since the start, pauses left out."""
        return time.monotonic() - self._start - self._pause

    def rate(self) -> float:
        """Tokens a second since the start."""
        return self._tokens / max(self.seconds, 1e-9)

    def lap(self) -> float:
        """Tokens a second since the last lap."""
        tokens, seconds = self._tokens - self._lap[0], self.seconds - self._lap[1]
        self._lap = (self._tokens, self.seconds)
        return tokens / max(seconds, 1e-9)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count."""
        begin = time.monotonic()
        yield
        self._pause += time.monotonic() - begin


class StopFlag:
    """True once a signal asked the run to stop."""

    def __init__(self) -> None:
        self.set = False

    def __bool__(self) -> bool:
        return self.set


@contextlib.contextmanager
def stop_requested() -> Iterator[StopFlag]:
    """SIGINT and SIGTERM finish the current step and write a checkpoint; a second one stops at once."""
    flag = StopFlag()

    def handle(number: int, _frame: Any) -> None:
        if flag.set:
            raise KeyboardInterrupt
        flag.set = True
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
    """This process's device: under a launcher each takes its own GPU."""
    device = choose_device(config.run.device)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank()) if world_size() > 1 else device
        torch.cuda.set_device(device)
    return device


def uses_bf16(config: TrainConfig, device: torch.device) -> bool:
    """bf16 autocast: asked for, or with ``auto`` on CUDA and for bf16 weights.

    Many CPUs run bf16 a hundred times slower than fp32.
    """
    wanted = config.run.mixed_precision
    return wanted == "bf16" or (
        wanted == "auto" and (device.type == "cuda" or config.memory.weights == "bf16")
    )


def set_threads(config: TrainConfig) -> None:
    """Launchers set one OpenMP thread a process; its processes may share what they are allowed to run on."""
    count = config.run.threads
    if count is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        count = (cores or 1) // local_world_size()
    torch.set_num_threads(max(1, count))
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Ask glibc to keep large freed blocks, which a step allocates again at once.

    By default it returns them to the kernel, which hands them back page by page, zeroed: about a tenth of a
    CPU training step. Elsewhere than on glibc nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
