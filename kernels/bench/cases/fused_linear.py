"""Benchmark of a decoder layer's four matrix products, each compared with the ops that it replaces."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.add_rms_norm import add_rms_norm
from vocabforge.ops.fused_linear import fused_linear, fused_linear_reference, fused_qkv
from vocabforge.ops.rope_store import rope_store
from vocabforge.ops.silu_mul import silu_mul

from .rope_store import rotation_inputs
from .types import Inputs, ModelShape, OpCase, case_of_op, normal

_REPLACED = "ops replaced"  # the residual addition is part of the next norm


def linear_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for o and down with a residual, and gate_up with norm and SwiGLU."""
    d, inner = shape.hidden, shape.intermediate
    return [
        _linear_case(shape, "o + residual", shape.heads * shape.head_dim, d),
        _linear_case(shape, "norm + gate_up + SwiGLU", d, 2 * inner),
        _linear_case(shape, "down + residual", inner, d),
    ]


def qkv_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case for norm, q, k and v, rotation and store; two ops if heads are normed."""
    n, d = shape.rows, shape.hidden
    rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    fixed: dict[str, Any] = {"heads": shape.heads, "eps": shape.eps}

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        products = _product_inputs(n, d, rows, random, dtype)
        rotation = rotation_inputs(shape, random, dtype)
        return {**products, "bias": None, "norm": normal((d,), random, dtype), **rotation}

    def replaced(inputs: Inputs) -> Tensor:
        normed = add_rms_norm(inputs["x"], inputs["x"], inputs["norm"], shape.eps)[0]
        qkv = F.linear(normed, inputs["weight"])[None]
        names = ("cos", "sin", "keys", "values", "slots", "qk_norm")
        return rope_store(qkv, **{name: inputs[name] for name in names}, **fixed)

    return [
        case_of_op(
            fused_qkv,
            partial(fused_qkv, backend="reference"),
            fixed,
            name=f"N={n} d={d} V={rows}",
            sizes={"N": n, "d": d, "V": rows},
            make=make,
            floor_bytes=2.0 * rows * d,
            floor_flops=2.0 * n * rows * d,
            baselines={_REPLACED: replaced},
            mutates=("keys", "values"),
        )
    ]


def _linear_case(shape: ModelShape, form: str, d: int, rows: int) -> OpCase:
    n, gated, eps = shape.rows, "SwiGLU" in form, shape.eps

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        beside = "norm" if gated else "residual"
        made = normal((d,) if gated else (n, rows), random, dtype)
        return {**_product_inputs(n, d, rows, random, dtype), beside: made}

    def replaced(inputs: Inputs) -> Tensor:
        x, weight = inputs["x"], inputs["weight"]
        if not gated:
            return F.linear(x, weight)
        return silu_mul(F.linear(add_rms_norm(x, x, inputs["norm"], eps)[0], weight))

    return case_of_op(
        fused_linear,
        fused_linear_reference,
        {"eps": eps, "gated": gated},
        name=f"{form} N={n} d={d} V={rows}",
        sizes={"N": n, "d": d, "V": rows},
        make=make,
        floor_bytes=2.0 * rows * d,
        floor_flops=2.0 * n * rows * d,
        baselines={_REPLACED: replaced},
    )


def _product_inputs(
    n: int, d: int, rows: int, random: torch.Generator, dtype: torch.dtype
) -> dict[str, Tensor]:
    return {"x": normal((n, d), random, dtype), "weight": normal((rows, d), random, dtype, d**-0.5)}
