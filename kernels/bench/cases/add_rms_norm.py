"""Benchmarks of ``add_rms_norm`` (residual addition and norm of a draft step) and ``join_norms``."""

from __future__ import annotations

import torch

from vocabforge.ops.add_rms_norm import add_rms_norm, add_rms_norm_reference, join_norms, join_norms_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, integers, normal


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with a residual, without (first norm of a layer's input), and for EAGLE-3's two inputs."""
    return [_case(shape, True), _case(shape, False), _joined(shape)]


def _joined(shape: ModelShape) -> OpCase:
    rows, width = shape.rows, shape.hidden

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "table": normal((shape.vocab, width), random, dtype),
            "ids": integers(shape.vocab, (rows,), random),
            "x": normal((rows, width), random, dtype),
            "first": normal((width,), random, dtype),
            "second": normal((width,), random, dtype),
        }

    return case_of_op(
        join_norms,
        join_norms_reference,
        {"eps": shape.eps},
        name=f"R={rows} d={width}",
        sizes={"R": rows, "d": width},
        make=make,
        floor_bytes=2.0 * width * (4 * rows + 2) + 8.0 * rows,
    )


def _case(shape: ModelShape, residual: bool) -> OpCase:
    rows, width = shape.rows, shape.hidden

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "x": normal((rows, width), random, dtype),
            "residual": normal((rows, width), random, dtype) if residual else None,
            "weight": normal((width,), random, dtype),
        }

    return case_of_op(
        add_rms_norm,
        add_rms_norm_reference,
        {"eps": shape.eps},
        name=f"R={rows} d={width}" + ("" if residual else " no residual"),
        sizes={"R": rows, "d": width},
        make=make,
        floor_bytes=2.0 * width * (rows * (4 if residual else 2) + 1),
    )
