"""Recurrent layers after a rejection: their state before the pass, and their mixers once more over what was accepted.

Nothing else of the model runs twice: no attention, no MLP, no expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from .cache import SlotCache


class StateReplay:
    """The recurrent mixers of a model, and what the last pass fed them.

    Args:
        model: its mixers are the modules with a ``layer_idx`` and a convolution.
    """

    def __init__(self, model: nn.Module) -> None:
        self._fed: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self._recording = False
        for module in model.modules():
            if hasattr(module, "layer_idx") and any(isinstance(one, nn.Conv1d) for one in module.children()):
                module.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._recording:
            self._fed.append((module, args, kwargs))

    def begin(self, cache: SlotCache) -> None:
        """Before a pass that may be rejected in part."""
        self._fed.clear()
        self._recording = True
        cache.saved = [states.clone() for states in cache.states()]

    def settle(self, cache: SlotCache, counts: Sequence[int], size: int) -> None:
        """After a pass of ``size`` tokens a row, of which the first ``counts`` of each row were accepted."""
        self._recording = False
        for row, count in enumerate(counts):
            if 0 < count < size:
                for states, saved in zip(cache.states(), cache.saved):
                    states[row].copy_(saved[row])
                cache.place.rows, cache.place.filled = slice(row, row + 1), True
                for module, args, kwargs in self._fed:
                    cut = [_part(one, row, count, size) for one in args]
                    named = {name: _part(one, row, count, size) for name, one in kwargs.items()}
                    module(*cut, **named)
        self._fed.clear()
        cache.saved = []


def _part(value: Any, row: int, count: int, size: int) -> Any:
    """Of a tensor (B, T, ...) one row's first tokens."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == size:
        return value[row : row + 1, :count]
    return value
