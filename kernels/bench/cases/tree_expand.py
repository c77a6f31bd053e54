"""Benchmark of ``tree_expand``: one round of a dynamic draft tree."""

from __future__ import annotations

import torch

from vocabforge.ops.tree_expand import tree_expand, tree_expand_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, integers, uniform


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for the children of the root and the children of ``topk`` nodes."""
    return [_case(shape, width) for width in sorted({1, shape.topk})]


def _case(shape: ModelShape, width: int) -> OpCase:
    k = shape.topk

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        scores = uniform((1, width), random).log()
        logprobs = uniform((1, width, k), random).log()
        ids, above = (integers(shape.vocab, size, random) for size in ((1, width, k), (1, width, 1)))
        return {"scores": scores, "logprobs": logprobs, "ids": ids, "above": above}

    return case_of_op(
        tree_expand,
        tree_expand_reference,
        {"keep": k, "first": k, "slot": k},
        name=f"W={width} k={k}",
        sizes={"W": width, "k": k},
        make=make,
        floor_bytes=12.0 * width + 12.0 * width * k + 4.0 * width * k + 36.0 * k,
        tolerance=0.0,
        dtypes=(torch.float32,),
    )
