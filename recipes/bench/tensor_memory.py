"""Track the bytes of live tensors: exact, deterministic, and also on CPUs.

Memory that an operation allocates and frees internally is not counted. This is a separate module because GPU
tests use it on machines with torch only.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Context manager that tracks every tensor created inside it, including in the backward pass.

    Attributes:
        live: bytes of live storages created inside the context.
        peak: maximum of ``live`` so far.
        largest: bytes of the largest storage.
        shapes: shapes of all tracked tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.shapes: set[tuple[int, ...]] = set()
        self._calls: Counter[str] = Counter()
        self._known: dict[int, int] = {}

    def operations(self, name: str) -> int:
        """Return the number of calls of an operation, such as ``aten.mm``."""
        return self._calls[name]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        self._calls[str(func.overloadpacket)] += 1
        for tensor in _tensors(result):
            self._add(tensor, given)
        return result

    def _add(self, tensor: torch.Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in given or key in self._known:
            return
        self.shapes.add(tuple(tensor.shape))
        self._known[key] = size
        self.live += size
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, size)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
