"""Rows of a draft head to target ids, as servers map them."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.target_load import dtype_name
from .types import Served

_REMEDY = "export the drafter again: d2t holds offsets, target id = row + d2t[row]"


def offsets_to_ids(d2t: Tensor) -> Tensor:
    """(R,) offsets -> (R,) target ids, in ascending order of rows."""
    return torch.arange(len(d2t)) + d2t.long()


def check_stored(served: Served, d2t: Tensor) -> bool:
    """Whether stored offsets are whole numbers of one dimension."""
    if d2t.dim() == 1 and len(d2t) and not d2t.is_floating_point() and d2t.dtype != torch.bool:
        return True
    kind = dtype_name(d2t.dtype)
    served.problem("draft tokens", "failed", f"d2t is {kind} of shape {list(d2t.shape)}", _REMEDY)
    return False


def check_ids(served: Served, ids: Tensor, rows: int, total: int) -> bool:
    """Whether every row of the head has one target id of its own; problems are recorded.

    Args:
        rows: of the head as the server has it. total: tokens of the target.
    """
    if len(ids) != rows:
        served.problem(
            "draft tokens", "failed", f"{len(ids):,} mapped rows, but {rows:,} of the head", _REMEDY
        )
        return False
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= total:
        stored = ids - torch.arange(len(ids))
        absolute = bool((stored.diff() > 0).all()) and int(stored.min()) >= 0 and int(stored.max()) < total
        told = ": d2t holds ids, not offsets" if absolute else ""
        served.problem(
            "draft tokens",
            "failed",
            f"rows map to ids {low} to {high}, beyond 0 to {total - 1}{told}",
            "subtract arange(R) from d2t" if absolute else _REMEDY,
        )
        return False
    if len(ids.unique()) != len(ids):
        twice = len(ids) - len(ids.unique())
        served.problem(
            "draft tokens", "failed", f"{twice:,} rows map to ids that other rows have, too", _REMEDY
        )
        return False
    return True
