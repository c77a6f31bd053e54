"""Top-k that decides ties by the lower id, which ``torch.topk`` does not promise."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MOST = 2**31 - 1


def _keys(values: Tensor, ids: Tensor | None = None, nan: bool = False) -> Tensor:
    """int64 keys in the order of (value, lower id first); without ids, of (value, lower index first).

    With ``nan`` there may be NaN, and it ranks below -inf; to look for it is one more pass over the values.
    """
    if ids is None:
        ids = torch.arange(values.shape[-1], device=values.device)
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0
    bits ^= (bits >> 31).bitwise_and_(_MOST)  # int32 order now equals float order
    if nan:
        bits.masked_fill_(values.isnan(), -_MOST - 1)
    keys = bits.to(torch.int64).bitwise_left_shift_(32)
    keys |= _MOST - ids
    return keys


def topk_lowest_id(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k with ties to the lower index.

    Args:
        values: (N, R) fp32, finite or infinite.
        k: at most R.

    Returns:
        values (N, k) in descending order and their indices (N, k) int64.
    """
    indices = _MOST - (_keys(values).topk(k, dim=-1).values & _LOW)
    return values.gather(-1, indices), indices


def topk_by_id(values: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Top-k of columns that stand for ids, in whatever order, with ties to the lower id.

    Args:
        values: (N, C) fp32, finite or infinite.
        ids: (C,) or (N, C) int64, 0 to 2**31 - 1.
        k: at most C.

    Returns:
        values (N, k) in descending order and their ids (N, k) int64.
    """
    best = _keys(values, ids).topk(k, dim=-1).values
    bits = (best >> 32).to(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(_MOST)  # the change of _keys undoes itself
    return bits.view(torch.float32), _MOST - (best & _LOW)


def top_set(scores: Tensor, n: int, *, nan: bool = False) -> Tensor:
    """Indices (N, n) int64 of the n best of (N, R) fp32 scores, ascending; ties at the border to the lower.

    With ``nan`` there may be NaN, which ranks below -inf.
    """
    chosen = _keys(scores, nan=nan).topk(n, dim=-1, sorted=False).values  # their order does not matter
    return (_MOST - (chosen & _LOW)).sort(-1).values
