"""Benchmark of ``target_choice``: the largest logit of each node of a tree."""

from __future__ import annotations

import torch

from vocabforge.ops.target_choice import target_choice, target_choice_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, normal


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for one row (plain decoding) and the nodes of a verified tree."""
    return [_case(shape, rows) for rows in sorted({1, shape.nodes})]


def _case(shape: ModelShape, rows: int) -> OpCase:
    vocab = shape.vocab

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {"logits": normal((rows, vocab), random, dtype)}

    def floor(inputs: Inputs) -> float:
        return float(rows * vocab * inputs["logits"].element_size() + 9 * rows)

    return case_of_op(
        target_choice,
        target_choice_reference,
        name=f"R={rows} V={vocab}",
        sizes={"R": rows, "V": vocab},
        make=make,
        floor_bytes=floor,
        baselines={"argmax": lambda inputs: inputs["logits"].argmax(-1)},
        tolerance=0.0,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )
