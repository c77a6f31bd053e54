"""Rollback of recurrent layers after a rejection: restore their states and rerun mixers on accepted tokens.

Only the mixers run twice; attention, MLPs and experts do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from .cache import SlotCache


class StateReplay:
    """The recurrent mixers of a model and their inputs in the last pass.

    Args:
        model: the model; its mixers are the modules with a ``layer_idx`` and a convolution.
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
        """Save the states and record inputs before a pass whose tokens may be rejected in part."""
        self._fed.clear()
        self._recording = True
        cache.saved = [states.clone() for states in cache.states()]

    def settle(self, cache: SlotCache, counts: Sequence[int], size: int) -> None:
        """Roll back to the first ``counts`` tokens of each row after a pass of ``size`` tokens per row."""
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
    """Return one row's first ``count`` tokens of a tensor (B, T, ...), or any other value unchanged."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == size:
        return value[row : row + 1, :count]
    return value
