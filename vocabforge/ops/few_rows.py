"""Product of few rows with a weight matrix on a CPU; PyTorch's product rereads the matrix for every row."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from .backend import Op

MOST_ROWS = 64  # PyTorch is as fast with more rows; with 32 rows of SmolLM2 it takes 1.5 to 2.7 times as long


def few_rows_reference(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Compute :func:`linear` in PyTorch."""
    return F.linear(x, w.to(x.dtype), bias)


_OP = Op("few_rows", few_rows_reference, frozenset({torch.float32}), host=True)


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """Compute ``torch.nn.functional.linear`` faster for few rows on a CPU: (..., K) x (N, K) -> (..., N).

    In the compiled product the summation order does not depend on the number of rows, so a token's logits do
    not depend on how many tokens are verified with it.

    Args:
        x: the compiled product supports at most ``MOST_ROWS`` fp32 rows.
        w: fp32, or bf16 with an fp32 x: weights are converted as they are read.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():  # the op has no gradient and cannot be fused
        return F.linear(x, w.to(x.dtype), bias)
    product = _OP.compiled(x) if backend == "auto" else partial(_OP, backend)
    rows = x.numel() // x.shape[-1]
    if product is None or not 0 < rows <= MOST_ROWS or not w.is_contiguous():
        return F.linear(x, w.to(x.dtype), bias)
    if x.dim() == 2:
        return product(x.contiguous(), w, bias)
    out: Tensor = product(x.reshape(rows, -1).contiguous(), w, bias)
    return out.view(*x.shape[:-1], -1)
