"""Helpers of the draft tree ops: ancestors from parents, and node sets as bits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WORD = 64  # bits


def ancestors_of(parents: Tensor, levels: int) -> Tensor:
    """Compute the ancestor mask bool (B, N, N): [b, i, j] is True if j is i or an ancestor of i.

    Args:
        parents: (B, N); node 0 is the root and its own parent.
        levels: maximum depth of the trees below the root.
    """
    batch, count = parents.shape
    ancestors = torch.eye(count, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    above = parents
    for _ in range(levels):
        ancestors.scatter_(2, above[:, :, None], True)
        above = parents.gather(1, above)
    return ancestors


def bits_of(seen: Tensor) -> Tensor:
    """Pack bools (..., M) into (..., ceil(M / 64)) int64: bit j % 64 of word j // 64 is ``seen[..., j]``."""
    padded = F.pad(seen, (0, -seen.shape[-1] % WORD)).long()
    places = torch.arange(WORD, device=seen.device)
    return (padded.unflatten(-1, (-1, WORD)) << places).sum(-1)  # the highest bit wraps into the sign
