"""Benchmark of ``distinct_rows``: the distinct ids of a draft step's shortlists."""

from __future__ import annotations

import torch

from vocabforge.ops.distinct_rows import distinct_rows, distinct_rows_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, distinct_ids, shared_ids


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with shortlists shared by all hidden states, and separate shortlists, at the table's k."""
    return [_case(shape, k, kind) for k in shape.shortlists for kind in ("shared", "own")]


def _case(shape: ModelShape, k: int, kind: str) -> OpCase:
    rows, vocab = shape.rows, shape.vocab
    draw = shared_ids if kind == "shared" else distinct_ids

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {"ids": draw(vocab, (rows, k), random).int()}

    return case_of_op(
        distinct_rows,
        distinct_rows_reference,
        {"size": vocab},
        name=f"N={rows} k={k} {kind}",
        sizes={"N": rows, "k": k, "V": vocab},
        make=make,
        dtypes=(torch.bfloat16,),
        floor_bytes=4.0 * (2 * rows * k + min(rows * k, vocab)),
        # The baseline has static shapes: torch.unique synchronizes, which forbids graph capture.
    )
