"""Benchmark of ``tree_verify_point``: sampled verification of a tree of point masses."""

from __future__ import annotations

import torch

from vocabforge.ops.tree_verify_point import tree_verify_point, tree_verify_point_reference

from .tree_verify import random_tree
from .types import Inputs, ModelShape, OpCase, case_of_op, integers, uniform


def cases(shape: ModelShape) -> list[OpCase]:
    """One tree."""
    nodes, levels, vocab = shape.nodes, shape.levels, shape.vocab

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        parents = random_tree(shape, random)["parents"]
        noise = uniform((1, nodes, vocab), random)
        tokens = integers(vocab, (1, nodes), random)
        # Each child's token gets a third of a distribution's mass, for long paths.
        distributions = noise.pow(4).scatter(2, tokens[:, None, :].expand(-1, nodes, -1), 0.0)
        distributions[0, parents[0], tokens[0]] = 1.0
        streams = integers(2**31, (2, 1), random)
        return {
            "tokens": tokens,
            "parents": parents,
            "alive": None,
            "weights": distributions,
            "seeds": streams[0],
            "draws": streams[1],
        }

    case = case_of_op(
        tree_verify_point,
        tree_verify_point_reference,
        {"levels": levels},
        name=f"N={nodes} V={vocab}",
        sizes={"N": nodes, "V": vocab, "levels": levels},
        make=make,
        # Only the root's distribution must be read; which others are read depends on the draws.
        floor_bytes=4.0 * vocab + 16.0 * nodes + 8.0 * (2 * levels + 7),
        tolerance=0.0,
        dtypes=(torch.float32,),
    )
    return [case]
