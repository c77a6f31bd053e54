"""Benchmark of ``tree_select``: the best nodes of a draft history as a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from ...ops.tree_select import tree_select, tree_select_reference
from .types import Inputs, OpCase, Shape, generator, integers


def cases(shape: Shape) -> list[OpCase]:
    """The history of one drafting."""
    return [_case(shape)]


def _history(shape: Shape, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Scores and parents as a dynamic tree records them, (1, n)."""
    k, device = shape.topk, random.device
    scores = torch.rand((1, k), generator=random, device=device).log()
    parents = torch.full((1, k), -1, device=device)
    frontier = torch.arange(k, device=device)[None]
    for _ in range(shape.depth):
        first = scores.shape[1]
        logprobs = torch.rand((1, k, k), generator=random, device=device).log()
        added = (scores.gather(1, frontier)[:, :, None] + logprobs).flatten(1)
        scores = torch.cat([scores, added], 1)
        parents = torch.cat([parents, frontier.repeat_interleave(k, 1)], 1)
        frontier = first + added.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return scores, parents


def _case(shape: Shape) -> OpCase:
    nodes, levels = shape.nodes, shape.levels
    size = shape.topk + shape.depth * shape.topk**2

    def make(device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        random = generator(device, seed)
        scores, parents = _history(shape, random)
        return {
            "roots": integers(shape.vocab, (1,), random),
            "tokens": integers(shape.vocab, (1, size), random),
            "scores": scores,
            "parents": parents,
        }

    return OpCase(
        name=f"tree_select n={size} N={nodes}",
        op="tree_select",
        sizes={"n": size, "N": nodes},
        make=make,
        run=lambda inputs, backend: tree_select(**inputs, nodes=nodes, levels=levels, backend=backend),
        reference=lambda inputs: tree_select_reference(**inputs, nodes=nodes, levels=levels),
        # Of tokens and parents only those that are kept.
        floor_bytes=4.0 * size + 16.0 * nodes + 24.0 * nodes + nodes**2 + 8.0 * nodes * -(-nodes // 64),
        baselines={"torch": lambda inputs: tree_select_reference(**inputs, nodes=nodes, levels=levels)},
        tolerance=0.0,
    )
