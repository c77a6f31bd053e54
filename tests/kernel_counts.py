"""The number of kernels that a pass launches on a GPU, counted on a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from vocabforge.ops.backend import Op

MEMORY = ("empty", "empty_like", "new_empty", "empty_strided")  # alone is no kernel


class Kernels(TorchDispatchMode):
    """Counts kernels: an op of ours is one, and so is every other call that makes or changes numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self._inside = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, found = function.overloadpacket.__name__, function(*args, **(kwargs or {}))
        if not self._inside and name not in MEMORY and not is_view(function, args, found):
            self.count[name] += 1
        return found

    def op(self, op: Op, backend: str, *args: Any) -> Any:
        """``Op.__call__`` that counts itself."""
        self.count[op.name] += 1
        outer, self._inside = self._inside, True
        try:  # kernels' results have no gaps
            return tree_map(
                lambda one: one.contiguous() if isinstance(one, Tensor) else one, op.reference(*args)
            )
        finally:
            self._inside = outer


def is_view(function: Any, args: Any, found: Any) -> bool:
    """Whether a call that changes nothing gives memory of its first argument: a view, or a cast to the same dtype."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or function._schema.is_mutable:
        return False
    made = [found] if isinstance(found, Tensor) else found
    return all(one.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() for one in made)


@contextmanager
def counted() -> Iterator[Kernels]:
    """Counts the kernels that run within, of the forms that CUDA tensors take."""
    kernels = Kernels()

    def call(op: Op, backend: str, *args: Any) -> Any:
        return kernels.op(op, backend, *args)

    with patch.object(Tensor, "is_cuda", True), patch.object(Op, "__call__", call), kernels:
        yield kernels
