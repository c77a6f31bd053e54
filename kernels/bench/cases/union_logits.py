"""Benchmark of ``union_logits``: a set of LM-head rows shared by all hidden states of a draft step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.union_logits import union_logits, union_logits_reference

from .types import TRITON, Inputs, LibraryWay, ModelShape, OpCase, case_of_op, normal


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases for shortlist, context, router and static vocabularies, and one with half the count."""
    sizes = sorted({*shape.shortlists, shape.context_tokens, shape.router_tokens, shape.static})
    return [_case(shape, columns, 1.0) for columns in sizes] + [_case(shape, sizes[-1], 0.5)]


def _case(shape: ModelShape, columns: int, counted: float) -> OpCase:
    rows, vocab, d, used = shape.rows, shape.vocab, shape.hidden, int(columns * counted)

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "hidden": normal((rows, d), random, dtype),
            "weight": normal((vocab, d), random, dtype, d**-0.5),
            "rows": torch.randperm(vocab, generator=random, device=random.device)[:columns].int(),
            "count": torch.tensor([used], dtype=torch.int32, device=random.device)
            if used < columns
            else None,
        }

    def gather(inputs: Inputs) -> Tensor:
        return F.linear(inputs["hidden"], inputs["weight"][inputs["rows"]]).float()

    def contiguous(inputs: Inputs) -> Tensor:
        """Multiply by as many contiguous rows, as a static vocabulary does."""
        return F.linear(inputs["hidden"], inputs["weight"][:columns]).float()

    def triton(inputs: Inputs) -> Callable[[], Tensor]:
        from ..triton_ops import union_logits as way

        given = dict(inputs)
        if given["count"] is None:
            given["count"] = torch.full((1,), columns, dtype=torch.int32, device=given["rows"].device)
        return lambda: way(**given)

    return case_of_op(
        union_logits,
        union_logits_reference,
        name=f"N={rows} C={columns}" + ("" if used == columns else f" count={used}"),
        sizes={"N": rows, "C": columns, "count": used, "d": d, "V": vocab},
        make=make,
        floor_bytes=2.0 * d * (used + rows) + 4.0 * (columns + rows * columns),
        floor_flops=2.0 * rows * used * d,
        baselines={"gather + matmul": gather, "matmul of as many contiguous rows": contiguous},
        libraries={"Triton": LibraryWay(TRITON, triton)}
        if columns in (shape.context_tokens, shape.static)
        else {},
    )
