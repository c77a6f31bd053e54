"""Benchmark of ``tree_expand``: one round of a dynamic draft tree."""

from __future__ import annotations

import torch

from ...ops.tree_expand import tree_expand, tree_expand_reference
from .types import Inputs, OpCase, Shape, generator, integers


def cases(shape: Shape) -> list[OpCase]:
    """The root's children, and those of ``topk`` nodes."""
    return [_case(shape, width) for width in sorted({1, shape.topk})]


def _case(shape: Shape, width: int) -> OpCase:
    k = shape.topk

    def make(device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        random = generator(device, seed)
        scores = torch.rand((1, width), generator=random, device=device).log()
        logprobs = torch.rand((1, width, k), generator=random, device=device).log()
        return {"scores": scores, "logprobs": logprobs, "ids": integers(shape.vocab, (1, width, k), random)}

    return OpCase(
        name=f"tree_expand W={width} k={k}",
        op="tree_expand",
        sizes={"W": width, "k": k},
        make=make,
        run=lambda inputs, backend: tree_expand(**inputs, keep=k, backend=backend),
        reference=lambda inputs: tree_expand_reference(**inputs, keep=k),
        floor_bytes=4.0 * width + 12.0 * width * k + 4.0 * width * k + 28.0 * k,
        baselines={"torch": lambda inputs: tree_expand_reference(**inputs, keep=k)},
        tolerance=0.0,
        dtypes=(torch.float32,),
    )
