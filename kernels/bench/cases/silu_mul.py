"""Benchmark of ``silu_mul``: the activation of one draft step's gated MLP."""

from __future__ import annotations

import torch

from vocabforge.ops.silu_mul import silu_mul, silu_mul_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, normal


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for the rows of a draft step and the nodes of a verified tree."""
    return [_case(shape, rows) for rows in sorted({shape.rows, shape.nodes})]


def _case(shape: ModelShape, rows: int) -> OpCase:
    inner = shape.intermediate

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {"gate_up": normal((rows, 2 * inner), random, dtype)}

    return case_of_op(
        silu_mul,
        silu_mul_reference,
        name=f"R={rows} i={inner}",
        sizes={"R": rows, "i": inner},
        make=make,
        floor_bytes=2.0 * rows * 3 * inner,
    )
