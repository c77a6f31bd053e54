"""Top-k that decides ties by the lower id, which ``torch.topk`` does not promise."""

from __future__ import annotations

import torch
from torch import Tensor


def _keys(logits: Tensor) -> Tensor:
    """int64 keys in the order of (value, lower index first): no two of a row are equal."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)  # int32 order now equals float order
    last = logits.shape[-1] - 1
    keys = bits.to(torch.int64).bitwise_left_shift_(32)
    keys |= torch.arange(last, -1, -1, device=logits.device)
    return keys


def topk_lowest_id(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k with ties to the lower index.

    Args:
        logits: (N, R) fp32, finite or -inf.
        k: at most R.

    Returns:
        values (N, k) in descending order and their indices (N, k) int64.
    """
    last = logits.shape[-1] - 1
    indices = last - (_keys(logits).topk(k, dim=-1).values & 0xFFFFFFFF)
    return logits.gather(-1, indices), indices


def top_set(scores: Tensor, n: int) -> Tensor:
    """Indices (N, n) int64 of the n best of (N, R) fp32 scores, ascending; ties at the border to the lower."""
    last = scores.shape[-1] - 1
    chosen = _keys(scores).topk(n, dim=-1, sorted=False).values  # their order does not matter
    return (last - (chosen & 0xFFFFFFFF)).sort(-1).values
