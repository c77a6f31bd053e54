"""Logits of one list of LM head rows for all hidden states of a draft step."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import INT32, INTEGERS, TensorRow, check_range, check_tensors
from .backend import FLOATS, Op


def union_logits_reference(
    hidden: Tensor, weight: Tensor, rows: Tensor, count: Tensor | None = None
) -> Tensor:
    """Compute :func:`union_logits` in PyTorch."""
    vocab = weight.shape[0]
    missing = (rows < 0) | (rows >= vocab)  # (C,)
    if count is not None:
        missing = missing | (torch.arange(rows.shape[0], device=rows.device) >= count)
    listed = weight[rows.long().clamp(0, vocab - 1)].float()  # (C, d)
    return (hidden.float() @ listed.T).masked_fill(missing, -torch.inf)  # (N, C)


_OP = Op("union_logits", union_logits_reference)


def union_logits(
    hidden: Tensor, weight: Tensor, rows: Tensor, *, count: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    """Compute ``hidden @ weight[rows].T``, reading each listed head row once for all hidden states.

    Args:
        hidden: (N, d) bf16 or fp16 (fp32 only without the CUDA kernel), N at most 64, d a multiple of 8.
        weight: (V, d), of the same dtype, V at most 2^20.
        rows: (C,) int32 or int64; values outside 0 .. V-1 are ignored.
        count: (1,) int32 on the same device: number of valid entries in ``rows``; None: all. It is read on
            the device, so the call can be captured in a CUDA graph. Further entries only cost the writing of
            -inf.

    Returns:
        (N, C) fp32, accumulated in fp32; -inf for ignored rows and for columns from ``count`` on.
    """
    listed = ("rows", rows, "C", INTEGERS), ("count", count, "I", INT32)
    check_head("union_logits", hidden, weight, *listed, I=1)
    logits: Tensor = _OP(backend, hidden.contiguous(), weight.contiguous(), rows.contiguous(), count)
    return logits


def check_head(op: str, hidden: Tensor, weight: Tensor, *others: TensorRow, **sizes: int) -> None:
    """Check the hidden states (N, d) and head weight (V, d) of an op, with its other tensors."""
    head = ("hidden", hidden, "Nd", FLOATS), ("weight", weight, "Vd", {hidden.dtype})
    sizes = check_tensors(op, *head, *others, **sizes)
    check_range(op, "the number of hidden states", sizes["N"], 1, 64)
    check_range(op, "the vocabulary", sizes["V"], 1, 2**20)
    check_range(op, "d modulo 8", sizes["d"] % 8, 0, 0)
    check_range(op, "d", sizes["d"], 8, 2**24 - 8)
