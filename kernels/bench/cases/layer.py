"""Benchmarks of the ops of a decoder layer: norms, rotation with the cache write, activation."""

from __future__ import annotations

from typing import Any

import torch

from vocabforge.ops.add_rms_norm import add_rms_norm, add_rms_norm_reference, join_norms, join_norms_reference
from vocabforge.ops.rope_store import rope_store, rope_store_reference
from vocabforge.ops.silu_mul import silu_mul, silu_mul_reference

from .types import ModelShape, OpCase, case_of_op, integers, normal, uniform


def norm_cases(shape: ModelShape) -> list[OpCase]:
    """Return the cases of a norm with a residual, and of EAGLE-3's two inputs."""
    rows, width = shape.rows, shape.hidden
    norm = case_of_op(
        add_rms_norm,
        add_rms_norm_reference,
        {"eps": shape.eps},
        name=f"R={rows} d={width}",
        make=lambda random, dtype: {
            "x": normal((rows, width), random, dtype),
            "residual": normal((rows, width), random, dtype),
            "weight": normal((width,), random, dtype),
        },
        floor_bytes=2.0 * width * (4 * rows + 1),
    )
    joined = case_of_op(
        join_norms,
        join_norms_reference,
        {"eps": shape.eps},
        name=f"R={rows} d={width}",
        make=lambda random, dtype: {
            "table": normal((shape.vocab, width), random, dtype),
            "ids": integers(shape.vocab, (rows,), random),
            "x": normal((rows, width), random, dtype),
            "first": normal((width,), random, dtype),
            "second": normal((width,), random, dtype),
        },
        floor_bytes=2.0 * width * (4 * rows + 2) + 8.0 * rows,
    )
    return [norm, joined]


def rope_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one request whose rows are the nodes of a draft step."""
    rows, dim, heads, kv_heads = shape.rows, shape.head_dim, shape.heads, shape.kv_heads
    every = heads + 2 * kv_heads
    case = case_of_op(
        rope_store,
        rope_store_reference,
        {"heads": heads, "eps": shape.eps},
        name=f"T={rows} Hq={heads} Hkv={kv_heads} D={dim}",
        make=lambda random, dtype: {
            "qkv": normal((1, rows, every * dim), random, dtype),
            **_rotation(shape, random, dtype),
        },
        floor_bytes=2.0 * dim * (rows * (2 * every + 2) + (heads + kv_heads if shape.qk_norm else 0))
        + 8.0 * rows,
        mutates=("keys", "values"),
    )
    return [case]


def _rotation(shape: ModelShape, random: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
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


def silu_cases(shape: ModelShape) -> list[OpCase]:
    rows, inner = shape.rows, shape.intermediate
    case = case_of_op(
        silu_mul,
        silu_mul_reference,
        name=f"R={rows} i={inner}",
        make=lambda random, dtype: {"gate_up": normal((rows, 2 * inner), random, dtype)},
        floor_bytes=2.0 * rows * 3 * inner,
    )
    return [case]
