"""Argument checks shared by the ops: dimensions, sizes, dtypes, devices."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..core.errors import UsageError

INTEGERS = frozenset({torch.int32, torch.int64})


def check_shape(op: str, name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Check the number of dimensions and the sizes that are not None.

    Raises:
        UsageError: the shape does not match.
    """
    found = tuple(tensor.shape)
    if len(found) != len(sizes) or any(want is not None and got != want for got, want in zip(found, sizes)):
        raise UsageError(
            f"{op}: {name} has another shape",
            got=found,
            expected="(" + ", ".join("any" if size is None else str(size) for size in sizes) + ")",
        )


def check_dtype(op: str, name: str, tensor: Tensor, allowed: Collection[torch.dtype]) -> None:
    """Check that the dtype is allowed.

    Raises:
        UsageError: it is not.
    """
    if tensor.dtype not in allowed:
        raise UsageError(
            f"{op}: {name} has another dtype",
            got=tensor.dtype,
            expected=" or ".join(sorted(str(one) for one in allowed)),
        )


def check_together(op: str, tensors: Sequence[Tensor | None]) -> None:
    """Check that all tensors are on one device.

    Raises:
        UsageError: they are not.
    """
    devices = {one.device for one in tensors if one is not None}
    if len(devices) > 1:
        raise UsageError(
            f"{op}: its tensors are on different devices",
            got=", ".join(sorted(str(one) for one in devices)),
            expected="one device",
        )


def check_range(op: str, name: str, value: int, low: int, high: int | None) -> None:
    """Check that ``low <= value <= high``; None: no upper bound.

    Raises:
        UsageError: the value is out of range.
    """
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high:,}"
        raise UsageError(f"{op}: {name} is out of range", got=value, expected=f"at least {low:,}{upper}")


def fitting_backend(op: str, backend: str, tensor: Tensor, fits: bool, needs: str) -> str:
    """Return ``backend``, or ``reference`` if ``auto`` would select a kernel that does not support the sizes.

    Args:
        tensor: first argument of the op; its device determines whether a kernel would run.
        fits: whether the kernel supports the sizes.
        needs: supported sizes, for the message.

    Raises:
        UsageError: another backend is requested and its kernel does not support the sizes.
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
