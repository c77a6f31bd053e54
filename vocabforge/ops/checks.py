"""What ops check of their tensors: dimensions, sizes, dtypes, devices."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..core.errors import UsageError

INTEGERS = frozenset({torch.int32, torch.int64})


def check_shape(op: str, name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Dimensions and, where not None, their sizes."""
    found = tuple(tensor.shape)
    if len(found) != len(sizes) or any(want is not None and got != want for got, want in zip(found, sizes)):
        raise UsageError(
            f"{op}: {name} has another shape",
            got=found,
            expected="(" + ", ".join("any" if size is None else str(size) for size in sizes) + ")",
        )


def check_dtype(op: str, name: str, tensor: Tensor, allowed: Collection[torch.dtype]) -> None:
    """Raises: UsageError: a dtype that is not allowed."""
    if tensor.dtype not in allowed:
        raise UsageError(
            f"{op}: {name} has another dtype",
            got=tensor.dtype,
            expected=" or ".join(sorted(str(one) for one in allowed)),
        )


def check_together(op: str, tensors: Sequence[Tensor | None]) -> None:
    """Raises: UsageError: tensors on different devices."""
    devices = {one.device for one in tensors if one is not None}
    if len(devices) > 1:
        raise UsageError(
            f"{op}: its tensors lie on different devices",
            got=", ".join(sorted(str(one) for one in devices)),
            expected="one device",
        )


def check_range(op: str, name: str, value: int, low: int, high: int | None) -> None:
    """Raises: UsageError: a number outside low .. high."""
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high:,}"
        raise UsageError(f"{op}: {name} is out of range", got=value, expected=f"at least {low:,}{upper}")


def fitting_backend(op: str, backend: str, tensor: Tensor, fits: bool, needs: str) -> str:
    """``backend``, or ``reference`` where ``auto`` would take a kernel that does not take these sizes.

    Args:
        tensor: the op's first; its device decides whether a kernel would run.
        fits: whether the kernel takes the sizes.
        needs: what it takes, for people.
    """
    on_device = backend == "emulated" or (backend in ("auto", "native") and tensor.is_cuda)
    if fits or not on_device:
        return backend
    if backend == "auto":
        return "reference"
    raise UsageError(
        f"{op}: its kernel does not take these sizes",
        got=tuple(tensor.shape),
        expected=needs,
        remedy="use backend auto or reference",
    )
