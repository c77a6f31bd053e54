"""A slot-based cache for Transformers models: keys and values in caller-chosen slots, plus recurrent states.

Attention layers keep every position regardless of their window; masks limit visibility. The caller assigns
positions to slots, so the nodes of a tree occupy adjacent slots and the accepted ones are moved later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin

from ...core.errors import DataError


class Place:
    """The parts of the cache that the current pass reads and writes.

    Attributes:
        batch: B, rows of the whole cache.
        capacity: S, slots per row.
        rows: rows of the pass.
        slots: slots that its tokens are written to: (T,), or (B', T) for several rows.
        view: number of leading slots that it attends to.
        positions: (B', T) positions of its tokens.
        filled: whether recurrent layers continue from the state of these rows instead of starting from zero.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        self.batch, self.capacity = batch, capacity
        self.rows = slice(0, batch)
        self.slots = self.positions = torch.empty(0)
        self.view = capacity
        self.filled = False


class SlotLayer(CacheLayerMixin):
    """Keys and values of an attention layer, (B, heads, S + 1, D) each, allocated in its first pass."""

    is_sliding = False

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros, so that unwritten slots are finite."""

        def empty(states: Tensor) -> Tensor:
            shape = (self.place.batch, states.shape[1], self.place.capacity + 1, states.shape[3])
            return torch.zeros(shape, dtype=states.dtype, device=states.device)

        self.keys, self.values = empty(key_states), empty(value_states)
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        place = self.place
        keys, values = self.keys, self.values
        if len(key_states) < place.batch:
            keys, values = keys[place.rows], values[place.rows]
        slots = place.slots
        if slots.device != keys.device:
            slots = slots.to(keys.device)
        if slots.dim() == 2:
            rows = torch.arange(len(slots), device=slots.device)[:, None]
            keys[rows, :, slots] = key_states.transpose(1, 2)
            values[rows, :, slots] = value_states.transpose(1, 2)
        else:
            keys.index_copy_(2, slots, key_states)
            values.index_copy_(2, slots, value_states)
        return keys[:, :, : place.view], values[:, :, : place.view]

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots ``source`` to ``destination``, each (B, N); all sources are read before any write."""
        if not self.is_initialized:
            return
        source, destination = source.to(self.keys.device), destination.to(self.keys.device)
        rows = torch.arange(len(source), device=source.device)[:, None]
        for states in (self.keys, self.values):
            states[rows, :, destination] = states[rows, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.place.view, 0

    def get_seq_length(self) -> Any:
        """Return the positions of the pass minus their indices, from which Llama 4 derives temperatures."""
        positions = self.place.positions[0]
        if len(positions) == 1:
            return positions
        return positions - torch.arange(len(positions), device=positions.device)

    def get_max_length(self) -> int:
        return self.place.capacity


class StateLayer(LinearAttentionCacheLayerMixin):
    """Convolution and recurrent states of one layer, (B, ...) each, allocated in the first pass."""

    def __init__(self, place: Place, number_of_states: int = 1) -> None:
        self.place = place
        self.memory: dict[tuple[str, int], Tensor] = {}
        self._started = dict.fromkeys(range(number_of_states), False)
        super().__init__(number_of_states=number_of_states)

    def _of(self, kind: str) -> dict[int, Tensor | None]:
        rows = self.place.rows
        return {
            index: self.memory[kind, index][rows] if (kind, index) in self.memory else None
            for index in range(self.number_of_states)
        }

    # The base class stores these as attributes; here they cover only the rows of the pass.
    @property
    def conv_states(self) -> dict[int, Tensor | None]:
        return self._of("conv")

    @conv_states.setter
    def conv_states(self, _: object) -> None:
        """Ignore the value; the first pass allocates the states."""

    @property
    def recurrent_states(self) -> dict[int, Tensor | None]:
        return self._of("recurrent")

    @recurrent_states.setter
    def recurrent_states(self, _: object) -> None:
        """Ignore the value; the first pass allocates the states."""

    @property
    def has_previous_state(self) -> dict[int, bool]:
        return dict.fromkeys(range(self.number_of_states), True) if self.place.filled else self._started

    @has_previous_state.setter
    def has_previous_state(self, _: object) -> None:
        """Ignore the value; ``place.filled`` determines it."""

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing; the first update allocates the states, once their shapes are known."""

    def _store(self, kind: str, index: int, states: Tensor) -> Tensor:
        if (kind, index) not in self.memory:
            shape = (self.place.batch, *states.shape[1:])
            self.memory[kind, index] = torch.zeros(shape, dtype=states.dtype, device=states.device)
        mine = self.memory[kind, index][self.place.rows]
        mine.copy_(states)
        return mine

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """Append the pass's states to the stored ones, keep the last, and return the concatenation."""
        before = self.conv_states[state_idx]
        size = before.shape[-1] if before is not None else conv_kernel_size or conv_states.shape[-1]
        if self.place.filled and before is not None:
            whole = torch.cat([before, conv_states], dim=-1)
        else:
            whole = torch.nn.functional.pad(conv_states, (max(size - conv_states.shape[-1], 0), 0))
        self._store("conv", state_idx, whole[..., -size:])
        return whole

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        return self._store("recurrent", state_idx, recurrent_states)


class StateAndSlotLayer(StateLayer, SlotLayer):
    """Cache of a layer with parallel attention and recurrence."""

    def __init__(self, place: Place, number_of_states: int = 1) -> None:
        SlotLayer.__init__(self, place)
        StateLayer.__init__(self, place, number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        if len(args) == 2:  # called with keys and values
            SlotLayer.lazy_initialization(self, *args)


class SlotCache(Cache):
    """A cache of all layers for B rows.

    Args:
        config: the model's text configuration.
        batch: B.
        capacity: S.
        replay: restores recurrent layers after a rejection; None if the model has none.
        device: device of the decoder's own tensors; each layer's cache is on the device of its weights.

    Raises:
        DataError: a layer selects its keys with an indexer.
    """

    is_compileable = False  # otherwise Transformers builds masks that are not needed

    def __init__(
        self,
        config: Any,
        batch: int,
        capacity: int,
        replay: StateReplay | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.place = Place(batch, capacity)
        self.capacity, self.replay, self.device = capacity, replay, device
        self.saved: list[Tensor] = []
        self._filled = [False] * batch
        self._tried = 1  # tokens per row of the pass to be settled
        super().__init__(layers=[self._layer(layer) for layer in DynamicCache(config=config).layers])

    def _layer(self, layer: Any) -> Any:
        recurrent = isinstance(layer, LinearAttentionCacheLayerMixin)
        if recurrent and isinstance(layer, CacheLayerMixin):
            return StateAndSlotLayer(self.place, layer.number_of_states)
        if recurrent:
            return StateLayer(self.place, layer.number_of_states)
        if not isinstance(layer, CacheLayerMixin):  # a layer without states
            return layer
        if hasattr(layer, "update_indexer"):
            raise DataError(
                "this target's attention chooses keys with an indexer, which trees cannot be verified with",
                got=type(layer).__name__,
                expected="attention over all keys, a window or chunks",
            )
        return SlotLayer(self.place)

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        layer = self.layers[layer_idx]
        return layer.get_seq_length() if isinstance(layer, SlotLayer) else 0

    def enter(self, rows: slice, slots: Tensor, positions: Tensor, view: int) -> None:
        """Begin a pass over these rows."""
        place = self.place
        place.rows, place.positions, place.view = rows, positions, view
        place.slots = slots[0] if slots.dim() == 2 and len(slots) == 1 else slots
        place.filled = any(self._filled[rows])
        self._filled[rows] = [True] * len(self._filled[rows])

    def restart(self, row: int) -> None:
        """Reset the row for a new request."""
        self._filled[row] = False

    def zero(self, row: int, used: int) -> None:
        """Zero the first ``used`` slots of a row, in the attention layers."""
        for layer in self.layers:
            if isinstance(layer, SlotLayer) and layer.is_initialized:
                for memory in (layer.keys, layer.values):
                    memory[row, :, :used] = 0

    def attempt(self, size: int) -> None:
        """Prepare for a pass of ``size`` tokens per row, some of which may be rejected."""
        self._tried = size
        if self.replay is not None and size > 1:
            self.replay.begin(self)

    def settle(self, counts: Sequence[int]) -> None:
        """Keep the first ``counts`` tokens of each row of that pass."""
        if self.replay is not None and self._tried > 1:
            self.replay.settle(self, counts, self._tried)

    def row(self, index: int) -> RowOfSlots:
        """Return one row, for :meth:`~vocabforge.models.hf.model.TransformersModel.forward`."""
        return RowOfSlots(self, slice(index, index + 1))

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Compact after a tree: copy slots ``source`` to ``destination``, (N,) or (B, N), in every layer."""
        every = self.place.batch, -1
        for layer in self.layers:
            if isinstance(layer, SlotLayer):
                layer.move(source.expand(every), destination.expand(every))

    def states(self) -> Iterator[Tensor]:
        """Yield all recurrent states, (B, ...) each."""
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                yield from layer.memory.values()


class RowOfSlots:
    """A view of some rows of a :class:`SlotCache`."""

    def __init__(self, whole: SlotCache, rows: slice) -> None:
        self.whole, self.rows, self.capacity = whole, rows, whole.capacity


def rows_of(cache: SlotCache | RowOfSlots) -> tuple[SlotCache, slice]:
    """Return the whole cache and the rows that ``cache`` covers."""
    if isinstance(cache, RowOfSlots):
        return cache.whole, cache.rows
    return cache, slice(0, cache.place.batch)


class StateReplay:
    """The recurrent mixers of a model and their inputs in the last pass.

    Only the mixers run twice; attention, MLPs and experts do not.

    Args:
        model: the model; its mixers are the modules with a ``layer_idx`` and a convolution.
    """

    def __init__(self, model: nn.Module) -> None:
        self._fed: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self._recording = False
        for module in model.modules():
            if hasattr(module, "layer_idx") and any(
                isinstance(child, nn.Conv1d) for child in module.children()
            ):
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
                    cut = [_part(arg, row, count, size) for arg in args]
                    named = {name: _part(arg, row, count, size) for name, arg in kwargs.items()}
                    module(*cut, **named)
        self._fed.clear()
        cache.saved = []


def _part(value: Any, row: int, count: int, size: int) -> Any:
    """Return one row's first ``count`` tokens of a tensor (B, T, ...), or any other value unchanged."""
    if isinstance(value, Tensor) and value.dim() >= 2 and value.shape[1] == size:
        return value[row : row + 1, :count]
    return value
