"""Sizes that a kernel does not take, though the op does."""

from __future__ import annotations

from torch import Tensor

from ..core.errors import UsageError


def fitting_backend(op: str, backend: str, tensor: Tensor, fits: bool, needs: str) -> str:
    """``backend``, or ``reference`` where ``auto`` would take a kernel that does not take these sizes.

    Args:
        tensor: the op's first; its device decides whether a kernel would run.
        fits: whether the kernel takes the sizes.
        needs: what it takes, for people.

    Raises:
        UsageError: a kernel is asked for by name and does not take the sizes.
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
