"""Benchmark of ``silu_mul``: the activation of one draft step's gated MLP."""

from __future__ import annotations

import torch

from ...ops.silu_mul import silu_mul, silu_mul_reference
from .types import Inputs, OpCase, Shape, generator, normal


def cases(shape: Shape) -> list[OpCase]:
    """The rows of a draft step, and the nodes of a verified tree."""
    return [_case(shape, rows) for rows in sorted({shape.rows, shape.nodes})]


def _case(shape: Shape, rows: int) -> OpCase:
    inner = shape.intermediate

    def make(device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        return {"gate_up": normal((rows, 2 * inner), generator(device, seed), dtype)}

    return OpCase(
        name=f"silu_mul R={rows} i={inner}",
        op="silu_mul",
        sizes={"R": rows, "i": inner},
        make=make,
        run=lambda inputs, backend: silu_mul(inputs["gate_up"], backend=backend),
        reference=lambda inputs: silu_mul_reference(inputs["gate_up"]),
        floor_bytes=2.0 * rows * 3 * inner,
        baselines={"torch": lambda inputs: silu_mul_reference(inputs["gate_up"])},
        dtypes=(torch.bfloat16, torch.float16),
    )
