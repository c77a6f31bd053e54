"""Benchmark of ``indexed_logits``: logits over a shortlist per hidden state, as in SpecVocab."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vocabforge.ops.indexed_logits import indexed_logits, indexed_logits_reference

from .types import (
    TRITON,
    Inputs,
    LibraryWay,
    ModelShape,
    OpCase,
    case_of_op,
    distinct_ids,
    normal,
    shared_ids,
)


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with shared, half-shared and separate shortlists per hidden state, at the table's k."""
    kinds = ("own",) if shape.rows == 1 else ("shared", "half shared", "own")
    return [_case(shape, k, kind) for k in shape.shortlists for kind in kinds]


def _ids(kind: str, vocab: int, rows: int, k: int, random: torch.Generator) -> Tensor:
    if kind == "shared":
        return shared_ids(vocab, (rows, k), random)
    own = distinct_ids(vocab, (rows, k), random)
    if kind == "half shared":
        own[:, : k // 2] = own[:1, : k // 2].clone()
    return own


def _case(shape: ModelShape, k: int, kind: str) -> OpCase:
    rows, vocab, d = shape.rows, shape.vocab, shape.hidden

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "hidden": normal((rows, d), random, dtype),
            "weight": normal((vocab, d), random, dtype, d**-0.5),
            "ids": _ids(kind, vocab, rows, k, random).int(),
        }

    def floor(inputs: Inputs) -> float:
        """Count each distinct row once, and hidden states, ids and logits once."""
        listed = int(inputs["ids"].unique().numel())
        return 2.0 * d * (listed + rows) + 8.0 * rows * k

    def gather(inputs: Inputs) -> Tensor:
        """Gather (N, k, d), then compute a batched product, as indexing in torch does."""
        gathered = inputs["weight"][inputs["ids"]]
        return torch.bmm(gathered, inputs["hidden"][:, :, None])[:, :, 0].float()

    def triton(inputs: Inputs) -> Callable[[], Tensor]:
        from ..triton_ops import indexed_logits as way

        return lambda: way(**inputs)

    return case_of_op(
        indexed_logits,
        indexed_logits_reference,
        name=f"N={rows} k={k} {kind}",
        sizes={"N": rows, "k": k, "d": d, "V": vocab},
        make=make,
        floor_bytes=floor,
        floor_flops=2.0 * rows * k * d,
        baselines={"gather + matmul": gather},
        goal=k == 2048,
        libraries={"Triton": LibraryWay(TRITON, triton)} if k == 2048 or shape.small else {},
    )
