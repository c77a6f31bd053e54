"""Benchmark of ``cluster_logits``: logits of a sorted head over the clusters that a router opened."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.cluster_logits import cluster_logits, cluster_logits_reference, tiles_bound

from .types import Inputs, ModelShape, OpCase, case_of_op, generator, normal, uniform


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with shared clusters (one union per draft step) and with separate clusters per row."""
    return [_case(shape, "shared"), _case(shape, "own")]


def _sizes(shape: ModelShape) -> Tensor:
    """Return (M,) deterministic uneven sizes that sum to V: from 0.5 to 1.5 times the mean."""
    random = generator(torch.device("cpu"), 7)
    weights = torch.rand(shape.clusters, generator=random) + 0.5
    ends = (weights.cumsum(0) / weights.sum() * shape.vocab).round().long()
    ends[-1] = shape.vocab
    return ends.diff(prepend=torch.zeros(1, dtype=torch.int64))


def _case(shape: ModelShape, kind: str) -> OpCase:
    rows, vocab, hidden, clusters = shape.rows, shape.vocab, shape.hidden, shape.clusters
    sizes = _sizes(shape)
    budget = max(1, shape.router_tokens * clusters // vocab)  # approximate size of the union of all rows
    each = budget if kind == "shared" else max(1, budget // 2)
    union = budget if kind == "shared" else min(clusters, 2 * budget)
    most_tiles = tiles_bound(sizes.tolist(), union)

    def opened(random: torch.Generator) -> Tensor:
        noise = uniform((rows, clusters), random)
        pool = uniform((1, clusters), random)
        if kind == "shared":
            noise = pool.expand(rows, clusters)
        else:  # rows choose from one pool of clusters, like siblings of a draft step
            noise = noise.masked_fill(pool.argsort(1).argsort(1) >= union, 2.0)
        return torch.zeros_like(noise, dtype=torch.bool).scatter_(1, noise.argsort(1)[:, :each], True)

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)))
        return {
            "hidden": normal((rows, hidden), random, dtype),
            "weight": normal((vocab, hidden), random, dtype, hidden**-0.5),
            "offsets": offsets.to(torch.int32).to(random.device),
            "opened": opened(random),
        }

    def floor(inputs: Inputs) -> float:
        listed = int(inputs["offsets"].diff()[inputs["opened"].any(0)].sum())
        return 2.0 * hidden * (listed + rows) + 4.0 * (listed * rows + listed) + rows * clusters

    columns = min(vocab, most_tiles * 64)

    def contiguous(inputs: Inputs) -> Tensor:
        """Compute logits of as many contiguous rows, a lower bound for torch."""
        return F.linear(inputs["hidden"], inputs["weight"][:columns]).float()

    def gathered(inputs: Inputs) -> Tensor:
        """Gather as many rows from the head, then compute their logits."""
        listed = torch.arange(columns, device=inputs["weight"].device)
        return F.linear(inputs["hidden"], inputs["weight"][listed]).float()

    return case_of_op(
        cluster_logits,
        cluster_logits_reference,
        {"most_tiles": most_tiles},
        name=f"N={rows} {kind}",
        sizes={"N": rows, "d": hidden, "M": clusters, "tiles": most_tiles},
        make=make,
        floor_bytes=floor,
        floor_flops=2.0 * rows * shape.router_tokens * hidden,
        baselines={"matmul of as many contiguous rows": contiguous, "gather + matmul": gathered},
    )
