"""Benchmark of ``rope_store``: head norms, rotation and the cache write of one draft step."""

from __future__ import annotations

from typing import Any

import torch

from vocabforge.ops.rope_store import rope_store, rope_store_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, normal, uniform


def cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one request whose rows are the nodes of a draft step."""
    rows, dim, heads, kv_heads = shape.rows, shape.head_dim, shape.heads, shape.kv_heads
    every = heads + 2 * kv_heads

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        qkv = normal((1, rows, every * dim), random, dtype)
        return {"qkv": qkv, **rotation_inputs(shape, random, dtype)}

    moved = 2.0 * dim * (rows * (2 * every + 2) + (heads + kv_heads if shape.qk_norm else 0)) + 8.0 * rows
    case = case_of_op(
        rope_store,
        rope_store_reference,
        {"heads": heads, "eps": shape.eps},
        name=f"T={rows} Hq={heads} Hkv={kv_heads} D={dim}",
        sizes={"B": 1, "T": rows, "Hq": heads, "Hkv": kv_heads, "D": dim},
        make=make,
        floor_bytes=moved,
        mutates=("keys", "values"),
    )
    return [case]


def rotation_inputs(shape: ModelShape, random: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    """Create angles, caches, slots and head norms for the rows of a draft step."""
    rows, dim, heads, kv_heads = shape.rows, shape.head_dim, shape.heads, shape.kv_heads
    capacity = shape.prefix + shape.nodes + rows
    angles = uniform((1, rows, dim // 2), random) * 6.0
    cos, sin = angles.cos(), angles.sin()
    order = uniform((1, capacity), random).argsort(1)
    return {
        "cos": torch.cat((cos, cos), -1).to(dtype),
        "sin": torch.cat((-sin, sin), -1).to(dtype),
        "keys": normal((1, kv_heads, capacity, dim), random, dtype),
        "values": normal((1, kv_heads, capacity, dim), random, dtype),
        "slots": order[:, :rows].contiguous(),
        "qk_norm": normal((heads + kv_heads, dim), random, dtype) if shape.qk_norm else None,
    }
