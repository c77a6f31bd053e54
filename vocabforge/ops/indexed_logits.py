"""Logits of per-row candidates: ids (N, k) of LM head rows, one list for each hidden state."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import INTEGERS, check_range
from .backend import Op
from .union_logits import check_head

_GATHERED = 1 << 24  # largest number of weights that the reference copies at once


def indexed_logits_reference(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Compute :func:`indexed_logits` in PyTorch."""
    vocab, queries = weight.shape[0], hidden.float()[:, :, None]
    most = max(1, _GATHERED // max(1, hidden.numel()))  # candidates at once
    parts = [weight[part.long().clamp(0, vocab - 1)].float() @ queries for part in ids.split(most, 1)]
    logits = torch.cat(parts, 1)[:, :, 0]  # (N, k)
    return logits.masked_fill((ids < 0) | (ids >= vocab), -torch.inf)


_OP = Op("indexed_logits", indexed_logits_reference)


def indexed_logits(hidden: Tensor, weight: Tensor, ids: Tensor, *, backend: str = "auto") -> Tensor:
    """Compute ``weight[ids[n, j]] . hidden[n]``, reading each distinct head row once from memory.

    Hidden states of one draft step share many candidates. The kernel lists the distinct rows on the device
    and multiplies each with all hidden states on tensor cores. It is bound by reading those rows, for any N.

    Args:
        hidden: (N, d) bf16 or fp16 (fp32 only without the CUDA kernel), N at most 64, d a multiple of 8.
        weight: (V, d), of the same dtype, V at most 2^20.
        ids: (N, k) int32 or int64, duplicates allowed; values outside 0 .. V-1 are ignored.

    Returns:
        (N, k) fp32, accumulated in fp32; -inf for ignored ids.
    """
    check_head("indexed_logits", hidden, weight, ("ids", ids, "Nk", INTEGERS))
    check_range("indexed_logits", "the number of ids", ids.numel(), 0, 2**30 - 1)
    logits: Tensor = _OP(backend, hidden.contiguous(), weight.contiguous(), ids.contiguous())
    return logits
