"""A static key/value cache and the visibility of its slots: dense masks, or lengths and bits on the device.

A dense mask has the shape of the visible slots, so CUDA graphs would need one recording per length. Lengths
and bits have fixed shapes: only the committed length changes, and it is a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..ops.compact_kv import compact_kv
from ..ops.tree_attention import tree_attention, visible_slots
from ..ops.trees import bits_of


class KVCache:
    """Keys (after RoPE) and values of all layers, zero-initialised.

    ``k`` and ``v`` are (L, B, nkv, capacity + 1, D). The caller decides which slot holds which position. The
    last slot is never used: a pass compiled for a view of the whole tensor would not fit other views.
    """

    def __init__(
        self,
        num_layers: int,
        batch: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_layers, batch, num_kv_heads, capacity + 1, head_dim)
        self._hold(
            torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device)
        )

    def _hold(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v
        self.capacity = int(k.shape[3]) - 1
        # Slicing out a layer costs a microsecond per call, so do it once.
        self.k_layers = k.unbind(0)  # each (B, nkv, S, D)
        self.v_layers = v.unbind(0)
        self.rows = torch.arange(k.shape[1], device=k.device)[:, None]  # (B, 1)

    @property
    def device(self) -> torch.device:
        return self.k.device

    def row(self, index: int) -> KVCache:
        """Return a one-row cache that shares this cache's memory."""
        view = KVCache.__new__(KVCache)
        view._hold(self.k[:, index : index + 1], self.v[:, index : index + 1])
        return view

    def restart(self, row: int) -> None:
        """Assign the row to a new request, which only attends to slots that it has written."""

    def zero(self, row: int, used: int) -> None:
        """Zero the first ``used`` slots of a row."""
        for memory in (self.k, self.v):
            memory[:, row, :, :used] = 0

    def attempt(self, size: int) -> None:
        """Prepare for a pass of ``size`` tokens per row, some of which may be rejected."""

    def settle(self, counts: Sequence[int]) -> None:
        """Keep the first ``counts`` tokens of each row of that pass."""

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys (after RoPE) and values (B, nkv, T, D) in ``slots``, (T,) or (B, T).

        Returns:
            the layer's full keys and values, (B, nkv, S, D) views of the cache.
        """
        keys, values = self.k_layers[layer], self.v_layers[layer]
        if slots.dim() == 2 and len(slots) > 1:
            keys[self.rows, :, slots] = k.transpose(1, 2)
            values[self.rows, :, slots] = v.transpose(1, 2)
            return keys, values
        if slots.dim() == 2:
            slots = slots[0]
        keys.index_copy_(2, slots, k)
        values.index_copy_(2, slots, v)
        return keys, values

    def write_all(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Store keys and values (B, T, L, nkv, D) of all layers in ``slots``, (T,) or (B, T)."""
        if slots.dim() == 2 and len(slots) > 1:
            self.k[:, self.rows, :, slots] = k
            self.v[:, self.rows, :, slots] = v
            return
        slots = slots.flatten()
        self.k.index_copy_(3, slots, k.permute(2, 0, 3, 1, 4))
        self.v.index_copy_(3, slots, v.permute(2, 0, 3, 1, 4))

    def move(self, source: Tensor, destination: Tensor, layers: int | None = None) -> None:
        """Copy slots ``source`` to ``destination``, (N,) or (B, N), which may overlap.

        Args:
            layers: the number of layers to copy in; None for all.
        """
        k, v = self.k[:layers], self.v[:layers]
        if k.is_cuda:
            every = k.shape[1], -1
            compact_kv(k, v, source.expand(every), destination.expand(every))
            return
        if source.dim() == 2 and len(source) > 1:
            for cache in (k, v):
                cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]
            return
        if source.dim() == 2:
            source, destination = source[0], destination[0]
        for cache in (k, v):
            cache.index_copy_(3, destination, cache.index_select(3, source))


def causal_mask(q_positions: Tensor, key_positions: Tensor) -> Tensor:
    """Return the causal mask: bool (T, S), True = visible.

    Args:
        q_positions: (T,) integer positions of the queries.
        key_positions: (S,) integer positions of the cache slots; negative for an unused slot.
    """
    return (q_positions.unsqueeze(1) >= key_positions) & (key_positions >= 0)


# Maps positions of queries (..., T, 1) and of earlier keys (..., 1, S) to the keys within a layer's bound.
Near = Callable[[Tensor, Tensor], Tensor]


def near_rule(window: int | None, chunk: int | None = None) -> Near | None:
    """Return the rule for keys in a ``window`` ending at the query or in its ``chunk``; None for no bound."""
    if chunk is not None:
        return lambda queries, keys: queries // chunk == keys // chunk
    return None if window is None else lambda queries, keys: queries - keys < window


class TreeMask(NamedTuple):
    """Slots visible to T queries of each of B rows: a prefix, then slots selected by bits in any window.

    Attributes:
        lengths: (B,) int64; slots 0 .. lengths - 1 hold these positions and are visible to every query.
        words: (B, T, W) int64; slot lengths + j is visible if bit j % 64 of word j // 64 is set.
        positions: (B, T) int64 query positions, for windows.
        window: of all layers: number of positions a query attends to, its own included; None for all.
        angles: cosines and signed sines (B, T, D) of the positions, if already computed.
    """

    lengths: Tensor
    words: Tensor
    positions: Tensor
    window: int | None = None
    angles: tuple[Tensor, Tensor] | None = None

    @classmethod
    def chain(
        cls, slots: Tensor, window: int | None = None, angles: tuple[Tensor, Tensor] | None = None
    ) -> TreeMask:
        """Return the causal mask of T consecutive queries in slots (B, T) that equal their positions."""
        # Contiguous, because every layer would copy a strided view for its kernel.
        words = _chain_words(*slots.shape, slots.device)
        return cls(slots[:, 0].contiguous(), words, slots, window, angles)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, own: int | None = None, scale: float | None = None
    ) -> Tensor:
        """Compute one layer's attention over its cache: (B, T, h, D).

        Args:
            q: (B, T, h, D).
            keys, values: (B, kv, S, D), including the keys and values of the query tokens.
            own: the layer's window, in positions, or None.
            scale: scale of the scores; None for D ** -0.5.
        """
        return tree_attention(
            q,
            keys,
            values,
            self.lengths,
            self.words,
            positions=self.positions,
            window=self._narrowest(own),
            scale=scale,
        )

    def bias(self, capacity: int, own: int | None, dtype: torch.dtype) -> Tensor:
        """Return the additive mask (B, 1, T, S), for attention variants without an op."""
        window = self._narrowest(own) or 0
        seen = visible_slots(self.lengths, self.words, capacity, self.positions, window)
        bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return bias.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]

    def _narrowest(self, own: int | None) -> int | None:
        return min((window for window in (own, self.window) if window is not None), default=None)


# bool or additive over the first slots; bits over all slots; or the number of slots that a single token attends to.
Mask = Tensor | TreeMask | int


class CacheView(NamedTuple):
    """A key cache as one step uses it: the slots to write and the keys to attend to.

    Attributes:
        cache: a cache with as many layers as the drafter.
        slots: (N,) or (B, N) int64 slots for the step's keys.
        mask: bool (N, S') or (B, N, S') over the first S' slots, True = visible; a ``TreeMask`` of all slots; or
            S' if a single token attends to all of them.
    """

    cache: KVCache
    slots: Tensor
    mask: Mask


@cache
def _chain_words(batch: int, count: int, device: torch.device) -> Tensor:
    """Return causal bits (B, T, W), cached so that captured passes do not recompute them in each replay."""
    with torch.inference_mode(False):  # usable in both modes
        seen = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        return bits_of(seen).repeat(batch, 1, 1)
