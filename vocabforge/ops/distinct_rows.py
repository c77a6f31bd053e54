"""The distinct rows that a draft step's candidates name, and where each candidate's row is."""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import Op
from .checks import INTEGERS, check_dtype, check_range, check_shape

SEGMENTS = 128  # of kernels/distinct_rows/segments.h: the kernel's order, which callers may not rely on


def distinct_rows_reference(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`distinct_rows`, in PyTorch."""
    device, exists = ids.device, (ids >= 0) & (ids < size)  # (N, k)
    known = torch.where(exists, ids, size).long()
    wanted = torch.zeros(size + 1, dtype=torch.bool, device=device).index_fill_(0, known.flatten(), True)
    wanted[size:] = False  # filled on the device; a number for one element would be copied from the host
    segment = torch.arange(size + 1, device=device) % SEGMENTS
    order = torch.argsort(
        (~wanted).long() * SEGMENTS + segment, stable=True
    )  # (size + 1,) distinct ids first
    count = wanted.sum(dtype=torch.int32)[None]
    columns = min(ids.numel(), size)
    rows = torch.where(torch.arange(columns, device=device) < count, order[:columns], -1).int()
    column_of = torch.empty_like(order).scatter_(0, order, torch.arange(size + 1, device=device))
    return rows, count, torch.where(exists, column_of[known], -1).int()


_OP = Op("distinct_rows", distinct_rows_reference, INTEGERS)


def distinct_rows(ids: Tensor, size: int, *, backend: str = "auto") -> tuple[Tensor, Tensor, Tensor]:
    """List each number once that is in ``ids``, on the device and with static shapes.

    Args:
        ids: (N, k) int32 or int64; a number outside 0 .. size-1 is no row.
        size: rows of the head, at most 2^20.

    Returns:
        rows (C,) int32, C = min(N k, size): the distinct numbers in an order that depends on nothing else, then -1;
        count (1,) int32: how many there are; places (N, k) int32: ``rows[places[n, j]] == ids[n, j]``, -1 for no row.
    """
    check_shape("distinct_rows", "ids", ids, None, None)
    check_dtype("distinct_rows", "ids", ids, INTEGERS)
    check_range("distinct_rows", "size", size, 1, 2**20)
    check_range("distinct_rows", "the number of ids", ids.numel(), 1, 2**30 - 1)
    rows, count, places = _OP(backend, ids.contiguous(), size)
    return rows, count, places
