"""Draft heads: for N hidden rows, the top-k log-probabilities and target token ids.

Every head answers in fp32, ordered by logit, ties to the lower target id (METHODS: draft heads).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DraftHead(Protocol):
    """What the draft tree asks of a head."""

    size: int  # tokens it can propose

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """(N, H) normed hidden rows -> log-probabilities (N, k) fp32 and target ids (N, k) int64."""
        ...


def topk_lowest_id(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k with ties to the lower index, which ``torch.topk`` does not promise.

    Floats are mapped to integers of the same order and joined with the reversed index into one int64 key,
    so that no two keys are equal.

    Args:
        logits: (N, R) fp32, finite or -inf.
        k: at most R.

    Returns:
        values (N, k) in descending order and their indices (N, k) int64.
    """
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)  # int32 order now equals float order
    last = logits.shape[-1] - 1
    keys = bits.to(torch.int64).bitwise_left_shift_(32)
    keys |= torch.arange(last, -1, -1, device=logits.device)
    indices = last - (keys.topk(k, dim=-1).values & 0xFFFFFFFF)
    return logits.gather(-1, indices), indices


class FullHead:
    """The whole LM head.

    Args:
        weight: (V, H).
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.size = int(weight.shape[0])

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        logits = torch.nn.functional.linear(hidden, self.weight).float()  # (N, V)
        values, ids = topk_lowest_id(logits, k)
        return (values - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0), ids


class StaticHead:
    """A fixed subset of head rows (FR-Spec, VocabTrim, EAGLE-3's reduced vocabulary).

    Args:
        weight: (R, H), row j scores ``target_ids[j]``.
        target_ids: (R,) int64, ascending (so that ties go to the lower target id).
    """

    def __init__(self, weight: Tensor, target_ids: Tensor) -> None:
        self._inner = FullHead(weight)
        self.weight = weight
        self.target_ids = target_ids
        self.size = int(weight.shape[0])

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        logprobs, rows = self._inner.topk(hidden, k)
        return logprobs, self.target_ids[rows]
