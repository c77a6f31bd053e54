"""Benchmark of ``tree_verify``: the longest path that matches the target's choices."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabforge.ops.tree_verify import tree_verify, tree_verify_reference
from vocabforge.ops.trees import ancestors_of

from .types import Inputs, ModelShape, OpCase, case_of_op, integers


def random_tree(shape: ModelShape, random: torch.Generator) -> dict[str, Tensor]:
    """Return parents, depths and ancestors of a random tree (1, N); each parent is in the previous level."""
    device, levels, nodes = random.device, shape.levels, shape.nodes
    sizes = [1] + [(nodes - 1) // levels + (level < (nodes - 1) % levels) for level in range(levels)]
    parts, depths, first = [torch.zeros(1, dtype=torch.int64, device=device)], [0], 0
    for depth, size in enumerate(sizes[1:], 1):
        parts.append(first + integers(sizes[depth - 1], (size,), random).sort().values)
        first += sizes[depth - 1]
        depths += [depth] * size
    parents = torch.cat(parts)[None]
    return {
        "parents": parents,
        "depths": torch.tensor([depths], device=device),
        "ancestors": ancestors_of(parents, levels),
    }


def cases(shape: ModelShape) -> list[OpCase]:
    """One tree."""
    nodes, levels = shape.nodes, shape.levels

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        return {
            "tokens": integers(2, (1, nodes), random),  # few values, for long paths
            "choices": integers(2, (1, nodes), random),
            "valid": torch.ones((1, nodes), dtype=torch.bool, device=random.device),
            **random_tree(shape, random),
        }

    case = case_of_op(
        tree_verify,
        tree_verify_reference,
        {"levels": levels, "alive": None},
        name=f"N={nodes}",
        sizes={"N": nodes, "levels": levels},
        make=make,
        floor_bytes=25.0 * nodes + 8.0 * (2 * levels + 4),
        tolerance=0.0,
        dtypes=(torch.bfloat16,),
    )
    return [case]
