"""Rank of this process, and the few collectives needed outside training."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .errors import UsageError, VocabForgeError

if TYPE_CHECKING:
    import numpy.typing as npt

# Ranks wait for the slowest one. A dead rank closes its connection, which the others detect immediately.
_PATIENCE = timedelta(days=7)


def rank() -> int:
    """Return the rank of this process, 0 without a launcher."""
    return _number("RANK", 0)


def world_size() -> int:
    """Return the number of launched processes, 1 without a launcher."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Return the rank of this process on its machine, 0 without a launcher."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    """Return the number of launched processes on this machine, 1 without a launcher."""
    return _number("LOCAL_WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UsageError(
            "the launcher's environment is broken",
            got=f"{name}={text!r}",
            expected="a whole number",
            remedy=f"unset {name}",
        ) from error


@dataclass(frozen=True)
class Group:
    """Launched processes joined over gloo (CPU); a single process does not need torch."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Gather the values of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def sum(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Sum an array elementwise over all ranks."""
        if self.size == 1:
            return array
        import numpy as np
        import torch
        import torch.distributed as dist

        total = torch.from_numpy(np.ascontiguousarray(array)).clone()
        dist.all_reduce(total)
        return total.numpy()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank; the result is equal on all ranks."""
        if self.size == 1:
            return flag
        import numpy as np

        return bool(self.sum(np.array([int(flag)])).any())

    def wait(self) -> None:
        """Block until every rank has called this method."""
        self.gather(None)


@contextlib.contextmanager
def joined(device_type: str = "cpu") -> Iterator[Group]:
    """Join the launched processes for the ``with`` block.

    Args:
        device_type: ``cpu`` uses gloo; ``cuda`` adds nccl for tensors on GPUs.

    Raises:
        UsageError: the launcher was asked for several processes but started one.
        VocabForgeError: the processes cannot be joined, or one of them exited inside the block.
    """
    group = Group(rank(), world_size())
    if group.size == 1:
        _check_lone()
        yield group
        return
    import torch.distributed as dist

    try:
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=group.rank, world_size=group.size, timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise VocabForgeError(
            "the launched processes cannot be joined",
            got=str(error).splitlines()[0],
            expected=f"{group.size} processes, with MASTER_ADDR and MASTER_PORT set by the launcher",
            remedy="start them with accelerate launch or torchrun",
        ) from error
    try:
        yield group
    except RuntimeError as error:
        if not isinstance(error, dist.DistBackendError) and "gloo" not in str(error).lower():
            raise
        raise VocabForgeError(
            "another rank exited early",
            got=str(error).splitlines()[0],
            remedy="see that rank's error message; finished work is kept, so run the same command again",
        ) from error
    finally:
        gc.collect()  # a wrapped model that outlives the group aborts the process at exit
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def _check_lone() -> None:
    """Detect ``accelerate launch --cpu --num_processes 2``, which silently starts a single process."""
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ and "ACCELERATE_USE_CPU" in os.environ:
        raise UsageError(
            "the launcher was asked for several processes but started one",
            got="MASTER_ADDR without WORLD_SIZE",
            expected="the number of processes given by --num_processes",
            remedy="use recipes/accelerate/cpu_two.yaml (distributed_type MULTI_GPU with use_cpu false), or "
            "torchrun",
        )
