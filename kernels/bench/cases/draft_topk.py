"""Benchmark of ``draft_topk``: the last step of every draft head, top-k over its columns as target ids."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vocabforge.ops.draft_topk import draft_topk, draft_topk_reference

from .types import TRITON, Inputs, LibraryWay, ModelShape, OpCase, case_of_op, distinct_ids, integers, normal


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases over the full vocabulary, a static subset with its map, and a ranker's candidates."""
    found = [_case(shape, "whole vocabulary", shape.vocab), _case(shape, "static", shape.static, mapped=True)]
    return found + [_case(shape, "candidates", size, own=True) for size in shape.shortlists]


def _case(shape: ModelShape, kind: str, columns: int, mapped: bool = False, own: bool = False) -> OpCase:
    rows, k = shape.rows, shape.topk

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        ids = distinct_ids(shape.vocab, (rows, columns), random).int() if own else None
        step = shape.vocab // columns
        part = torch.arange(columns, device=random.device) * step + integers(step, (columns,), random)
        return {
            "logits": normal((rows, columns), random, dtype, 3.0),
            "k": k,
            "ids": ids,
            "target_ids": part if mapped else None,
        }

    # Each logit is read once; of the ids and the map only the needed entries are read.
    moved = (
        rows * columns * 4.0 + (rows * columns * 4.0 if own else 0.0) + rows * k * (20.0 if mapped else 12.0)
    )
    return case_of_op(
        draft_topk,
        draft_topk_reference,
        name=f"N={rows} C={columns} {kind}",
        sizes={"N": rows, "C": columns, "k": k},
        make=make,
        floor_bytes=moved,
        baselines={"log_softmax and topk": _torch},
        tolerance=1e-4,
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
        libraries={} if own else {"Triton": LibraryWay(TRITON, _triton)},
    )


def _torch(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Compute the result in PyTorch, without a fixed order for ties."""
    values, chosen = inputs["logits"].float().log_softmax(-1).topk(inputs["k"], dim=-1)
    if inputs["ids"] is not None:
        chosen = inputs["ids"].gather(-1, chosen).long()
    return values, chosen if inputs["target_ids"] is None else inputs["target_ids"][chosen]


def _triton(inputs: Inputs) -> Callable[[], tuple[Tensor, Tensor]]:
    from ..triton_ops import draft_topk as way

    return lambda: way(inputs["logits"], inputs["k"], inputs["target_ids"])
