"""Argument checks shared by the ops: dimensions, sizes, dtypes, devices."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ..core.errors import UsageError

INTEGERS = frozenset({torch.int32, torch.int64})
FP32, INT32, INT64, BOOL = (
    frozenset({dtype}) for dtype in (torch.float32, torch.int32, torch.int64, torch.bool)
)


TensorRow = tuple[str, Tensor | None, str, Collection[torch.dtype]]


def check_tensors(op: str, *rows: TensorRow, **sizes: int) -> dict[str, int]:
    """Check the shapes, dtypes and devices of an op's tensors.

    Args:
        rows: name, tensor (None is skipped), dimensions and allowed dtypes. Each letter of the dimensions is a
            size, the same in all tensors: ``"BTD"``.
        sizes: sizes that are known beforehand, by letter.

    Returns:
        All sizes by letter.

    Raises:
        UsageError: a shape or dtype does not match, or the tensors are on different devices.
    """
    devices = set()
    for name, tensor, dimensions, dtypes in rows:
        if tensor is None:
            continue
        shape = tensor.shape
        if len(shape) != len(dimensions) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(dimensions, shape)
        ):
            expected = ", ".join(str(sizes.get(letter, "any")) for letter in dimensions)
            raise UsageError(f"{op}: {name} has another shape", got=tuple(shape), expected=f"({expected})")
        if tensor.dtype not in dtypes:
            allowed = " or ".join(sorted(map(str, dtypes)))
            raise UsageError(f"{op}: {name} has another dtype", got=tensor.dtype, expected=allowed)
        devices.add(tensor.device)
    if len(devices) > 1:
        got = ", ".join(sorted(map(str, devices)))
        raise UsageError(f"{op}: its tensors are on different devices", got=got, expected="one device")
    return sizes


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
