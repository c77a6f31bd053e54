"""Counts the bytes of tensors that live at once: exact, the same on every run, and for CPUs too.

What an operation allocates inside itself and frees before it returns is not seen. A module of its own because GPU tests
use it on machines that have torch alone.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Context that watches every tensor made inside it, in the backward pass too.

    Attributes:
        live: bytes of storages made inside the context that still exist.
        peak: the highest ``live`` so far.
        largest: bytes of the largest storage.
        shapes: every shape that was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.shapes: set[tuple[int, ...]] = set()
        self._calls: Counter[str] = Counter()
        self._known: dict[int, int] = {}

    def operations(self, name: str) -> int:
        """How often an operation was called: ``aten.mm``."""
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
