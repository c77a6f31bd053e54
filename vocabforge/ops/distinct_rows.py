"""Distinct rows among the candidates of a draft step, and the position of each candidate's row."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import INTEGERS, check_range, check_tensors
from .backend import Op

SEGMENTS = 128  # order of kernels/distinct_rows/segments.h; callers must not rely on it


def distinct_rows_reference(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute :func:`distinct_rows` in PyTorch."""
    device, exists = ids.device, (ids >= 0) & (ids < size)  # (N, k)
    known = torch.where(exists, ids, size).long()
    wanted = torch.zeros(size + 1, dtype=torch.bool, device=device).index_fill_(0, known.flatten(), True)
    wanted[size:] = False  # a slice is filled on the device; a scalar index would copy from the host
    segment = torch.arange(size + 1, device=device) % SEGMENTS
    # (size + 1,) distinct ids first
    order = torch.argsort((~wanted).long() * SEGMENTS + segment, stable=True)
    count = wanted.sum(dtype=torch.int32)[None]
    columns = min(ids.numel(), size)
    rows = torch.where(torch.arange(columns, device=device) < count, order[:columns], -1).int()
    column_of = torch.empty_like(order).scatter_(0, order, torch.arange(size + 1, device=device))
    return rows, count, torch.where(exists, column_of[known], -1).int()


_OP = Op("distinct_rows", distinct_rows_reference, INTEGERS)


def distinct_rows(ids: Tensor, size: int, *, backend: str = "auto") -> tuple[Tensor, Tensor, Tensor]:
    """List the distinct values of ``ids`` on the device, with static shapes.

    Args:
        ids: (N, k) int32 or int64; values outside 0 .. size-1 are ignored.
        size: rows of the head, at most 2^20.

    Returns:
        rows (C,) int32 with C = min(N k, size): the distinct values in an order that depends only on the set,
        padded with -1; count (1,) int32: their number; places (N, k) int32 with
        ``rows[places[n, j]] == ids[n, j]``, -1 for ignored values.
    """
    check_tensors("distinct_rows", ("ids", ids, "Nk", INTEGERS))
    check_range("distinct_rows", "size", size, 1, 2**20)
    check_range("distinct_rows", "the number of ids", ids.numel(), 1, 2**30 - 1)
    rows, count, places = _OP(backend, ids.contiguous(), size)
    return rows, count, places
