"""Benchmark of ``compact_kv``: moves a tree's accepted nodes to the end of the prefix, in all layers."""

from __future__ import annotations

import torch

from vocabforge.ops.compact_kv import compact_kv, compact_kv_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, normal, uniform


def cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of a full path of one tree."""
    pairs, slots = shape.levels + 1, shape.prefix + shape.nodes
    size = (shape.layers, 1, shape.kv_heads, slots, shape.head_dim)

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        path = uniform((1, shape.nodes - 1), random).argsort(1)[:, : pairs - 1]
        root = torch.zeros((1, 1), dtype=torch.int64, device=random.device)
        source = shape.prefix + torch.cat([root, 1 + path.sort(1).values], 1)
        return {
            "keys": normal(size, random, dtype),
            "values": normal(size, random, dtype),
            "source": source,
            "destination": shape.prefix + torch.arange(pairs, device=random.device)[None],
        }

    def floor(inputs: Inputs) -> float:
        """Count each moved slot as read and written once, in both caches."""
        moved = int((inputs["source"] != inputs["destination"]).sum())
        per_slot = shape.layers * shape.kv_heads * shape.head_dim * inputs["keys"].element_size()
        return 4.0 * moved * per_slot + 16.0 * pairs

    case = case_of_op(
        compact_kv,
        compact_kv_reference,
        name=f"L={shape.layers} P={pairs}",
        sizes={"L": shape.layers, "P": pairs},
        make=make,
        floor_bytes=floor,
        tolerance=0.0,
        mutates=("keys", "values"),
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
    )
    return [case]
