"""A static key/value cache and the visibility masks over its slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.compact_kv import compact_kv


class KVCache:
    """Keys (after RoPE) and values of every layer, allocated once.

    ``k`` and ``v`` are (L, B, nkv, S, D). A slot holds one position's keys and values; which slot holds
    which position is the caller's to decide. Slots start as zeros, so an unwritten one is finite.
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
        shape = (num_layers, batch, num_kv_heads, capacity, head_dim)
        self._hold(
            torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device)
        )

    def _hold(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v
        self.capacity = int(k.shape[3])
        # Slicing a layer out costs a microsecond a call: do it once.
        self.k_layers = k.unbind(0)  # each (B, nkv, S, D)
        self.v_layers = v.unbind(0)
        self.rows = torch.arange(k.shape[1], device=k.device)[:, None]  # (B, 1)

    def row(self, index: int) -> KVCache:
        """One row as a cache of its own that shares this one's memory."""
        view = KVCache.__new__(KVCache)
        view._hold(self.k[:, index : index + 1], self.v[:, index : index + 1])
        return view

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys (after RoPE) and values (B, nkv, T, D).

        Args:
            slots: (T,) the same for every row, or (B, T).

        Returns:
            the layer's whole keys and values, (B, nkv, S, D) views of the cache.
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

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Compaction after a tree: copy slots ``source`` to ``destination``, each (N,) or (B, N), in every layer.

        Reads all sources before writing, so the two may overlap.
        """
        if self.k.is_cuda:
            every = self.k.shape[1], -1
            compact_kv(self.k, self.v, source.expand(every), destination.expand(every))
            return
        if source.dim() == 2 and len(source) > 1:
            for cache in (self.k, self.v):
                cache[:, self.rows, :, destination] = cache[:, self.rows, :, source]
            return
        if source.dim() == 2:
            source, destination = source[0], destination[0]
        for cache in (self.k, self.v):
            cache.index_copy_(3, destination, cache.index_select(3, source))


def causal_mask(q_positions: Tensor, key_positions: Tensor, window: int | None = None) -> Tensor:
    """Which keys a query may read: not later than itself, and within the window if there is one.

    Args:
        q_positions: (T,) integer positions of the queries.
        key_positions: (S,) integer positions of the cache slots; negative means an unused slot.
        window: positions that a query sees, itself included; None means all.

    Returns:
        bool (T, S), True = visible.
    """
    distance = q_positions.unsqueeze(1) - key_positions.unsqueeze(0)  # (T, S)
    visible = (distance >= 0) & (key_positions >= 0)
    return visible if window is None else visible & (distance < window)
