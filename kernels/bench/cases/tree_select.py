"""Benchmark of ``tree_select``: the best nodes of a draft history as a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabforge.ops.tree_select import tree_select, tree_select_reference

from .types import Inputs, ModelShape, OpCase, case_of_op, integers, uniform


def _history(shape: ModelShape, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return scores (1, n) and expanded nodes (1, n / k) as a dynamic tree records them."""
    k, device = shape.topk, random.device
    scores = uniform((1, k), random).log()
    parents = torch.full((1, 1), -1, device=device)
    frontier = torch.arange(k, device=device)[None]
    for _ in range(shape.depth):
        first = scores.shape[1]
        logprobs = uniform((1, k, k), random).log()
        added = (scores.gather(1, frontier)[:, :, None] + logprobs).flatten(1)
        scores = torch.cat([scores, added], 1)
        parents = torch.cat([parents, frontier], 1)
        frontier = first + added.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return scores, parents


def cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one drafting's history."""
    nodes, levels = shape.nodes, shape.levels
    size = shape.topk + shape.depth * shape.topk**2

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        scores, parents = _history(shape, random)
        return {
            "roots": integers(shape.vocab, (1,), random),
            "tokens": integers(shape.vocab, (1, size), random),
            "scores": scores,
            "parents": parents,
        }

    case = case_of_op(
        tree_select,
        tree_select_reference,
        {"nodes": nodes, "levels": levels},
        name=f"n={size} N={nodes}",
        sizes={"n": size, "N": nodes},
        make=make,
        # Only the tokens and parents of kept nodes are read.
        floor_bytes=4.0 * size + 16.0 * nodes + 24.0 * nodes + nodes**2 + 8.0 * nodes * -(-nodes // 64),
        tolerance=0.0,
        dtypes=(torch.bfloat16,),
    )
    return [case]
