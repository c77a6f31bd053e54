"""Random draft histories and trees for tests of the tree ops."""

from __future__ import annotations

import torch
from torch import Tensor


def coarse(shape: tuple[int, ...], stream: torch.Generator) -> Tensor:
    """Log-probabilities with many ties, some 0 (of either sign) and some -inf."""
    found = -(torch.rand(shape, generator=stream) * 6).round() / 4
    found = torch.where(torch.rand(shape, generator=stream) < 0.1, torch.tensor(-torch.inf), found)
    return torch.where(torch.rand(shape, generator=stream) < 0.1, torch.tensor(-0.0), found)


def fine(shape: tuple[int, ...], stream: torch.Generator) -> Tensor:
    """Log-probabilities that hardly ever tie."""
    return torch.rand(shape, generator=stream).log()


def random_parents(batch: int, nodes: int, levels: int, stream: torch.Generator) -> Tensor:
    """Trees (B, N) of at most ``levels`` levels: parents before children, the root its own."""
    parents = torch.zeros(batch, nodes, dtype=torch.int64)
    for row in range(batch):
        depths = [0]
        for node in range(1, nodes):
            open_nodes = [place for place in range(node) if depths[place] < levels]
            parent = open_nodes[int(torch.randint(len(open_nodes), (1,), generator=stream))]
            parents[row, node] = parent
            depths.append(depths[parent] + 1)
    return parents


def depths_and_ancestors(parents: Tensor) -> tuple[Tensor, Tensor]:
    """Of trees (B, N), node after node."""
    batch, nodes = parents.shape
    depths, ancestors = torch.zeros_like(parents), torch.zeros(batch, nodes, nodes, dtype=torch.bool)
    for row in range(batch):
        for node in range(nodes):
            parent = int(parents[row, node])
            if node:
                depths[row, node] = depths[row, parent] + 1
                ancestors[row, node] = ancestors[row, parent]
            ancestors[row, node, node] = True
    return depths, ancestors
