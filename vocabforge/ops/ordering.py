"""Top-k with ties broken by the lower id, which ``torch.topk`` does not guarantee."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MOST = 2**31 - 1


def _keys(values: Tensor, ids: Tensor | None = None, nan: bool = False) -> Tensor:
    """Return int64 keys that sort by value, then by lower id (without ids, by lower index).

    With ``nan``, values may contain NaN, which ranks below -inf; this costs one more pass over the values.
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
    """Compute top-k with ties broken by the lower index.

    Args:
        values: (N, R) fp32, finite or infinite.
        k: at most R.

    Returns:
        values (N, k) in descending order and their indices (N, k) int64.
    """
    indices = _MOST - (_keys(values).topk(k, dim=-1).values & _LOW)
    return values.gather(-1, indices), indices


def topk_by_id(values: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Compute top-k of columns labelled with ids in any order, with ties broken by the lower id.

    Args:
        values: (N, C) fp32, finite or infinite.
        ids: (C,) or (N, C) int64, 0 to 2**31 - 1.
        k: at most C.

    Returns:
        values (N, k) in descending order and their ids (N, k) int64.
    """
    best = _keys(values, ids).topk(k, dim=-1).values
    bits = (best >> 32).to(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(_MOST)  # the transformation of _keys is its own inverse
    return bits.view(torch.float32), _MOST - (best & _LOW)


def top_set(scores: Tensor, n: int, *, nan: bool = False) -> Tensor:
    """Return ascending indices (N, n) int64 of the n best of (N, R) fp32 scores; ties go to lower indices.

    With ``nan``, scores may contain NaN, which ranks below -inf.
    """
    chosen = _keys(scores, nan=nan).topk(n, dim=-1, sorted=False).values  # their order does not matter
    return (_MOST - (chosen & _LOW)).sort(-1).values
