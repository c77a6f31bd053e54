"""A static key/value cache and the visibility masks over its slots."""

from __future__ import annotations

import torch
from torch import Tensor


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
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.capacity = capacity
        # Slicing a layer out costs a microsecond a call: do it once.
        self.k_layers = self.k.unbind(0)  # each (B, nkv, S, D)
        self.v_layers = self.v.unbind(0)

    def write(self, layer: int, k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's keys (after RoPE) and values (B, nkv, T, D) at ``slots`` (T,).

        Returns:
            the layer's whole keys and values, (B, nkv, S, D) views of the cache.
        """
        keys, values = self.k_layers[layer], self.v_layers[layer]
        keys.index_copy_(2, slots, k)
        values.index_copy_(2, slots, v)
        return keys, values

    def move(self, source: Tensor, destination: Tensor) -> None:
        """Copy slots ``source`` (N,) to slots ``destination`` (N,) in every layer (compaction after a tree).

        Reads all sources before writing, so the two may overlap.
        """
        self.k.index_copy_(3, destination, self.k.index_select(3, source))
        self.v.index_copy_(3, destination, self.v.index_select(3, source))


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
