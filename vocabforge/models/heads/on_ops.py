"""Draft heads on the ops: static shapes and no host reads, so that CUDA graphs can capture them.

:func:`chosen` alone selects the form of a head's ``topk``. On a GPU it selects the ops, because a host read
would stall the stream and prevent graph capture. On a CPU it selects the plain form: a union whose size is
read on the host gathers and multiplies fewer rows than a union of the maximum size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...ops.distinct_rows import distinct_rows
from ...ops.draft_topk import MOST_K
from ...ops.ranker_select import MOST_ROWS, MOST_VOCAB
from ...ops.union_logits import union_logits
from .interface import DraftState

__all__ = ["MOST_K", "MOST_ROWS", "chosen", "fits", "in_parts", "of_rows", "shared_logits"]

_STEP = 8  # the ops require head widths that are multiples of this


def chosen(weight: Tensor, asked: bool | None) -> bool:
    """Return whether a head with weight (R, H) runs on the ops; for ``asked`` see ``HeadOptions.ops``."""
    wanted = weight.is_cuda if asked is None else asked
    return wanted and weight.shape[1] % _STEP == 0 and len(weight) <= MOST_VOCAB


def fits(hidden: Tensor, k: int, requests: int) -> bool:
    """Return whether the ops support ``k`` tokens and all rows (N, H) of a request in one call."""
    return k <= MOST_K and len(hidden) <= MOST_ROWS * requests


def in_parts(
    ask: Callable[[Tensor, DraftState | None], tuple[Tensor, ...]], hidden: Tensor, state: DraftState | None
) -> tuple[Tensor, ...]:
    """Call ``ask`` on rows (N, H) in parts small enough for the ops, each with a few whole requests."""
    if len(hidden) <= MOST_ROWS or state is None:
        return ask(hidden, state)
    each = len(hidden) // state.requests
    count = MOST_ROWS // each
    parts = [
        ask(hidden[first * each : last * each], state.of_requests(first, last))
        for first in range(0, state.requests, count)
        for last in (min(first + count, state.requests),)
    ]
    return tuple(map(torch.cat, zip(*parts)))


def shared_logits(
    hidden: Tensor, weight: Tensor, rows: Tensor, groups: int, *, distinct: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute logits of head rows shared by groups of hidden rows: one product over the union of all rows.

    Args:
        hidden: (N, H), N / G consecutive rows per group.
        weight: (R, H).
        rows: (n, T) int, n / G lists per group, -1 for padding.
        groups: G.
        distinct: ``rows`` has no duplicates.

    Returns:
        logits (N, C) fp32, -inf outside a row's group, and the columns' head rows (C,) int, -1 for none.
    """
    if distinct and len(rows) == 1:
        return union_logits(hidden, weight, rows[0]), rows[0]
    union, count, places = distinct_rows(rows, len(weight))  # (C,), (1,), (n, T)
    logits = union_logits(hidden, weight, union, count=count)
    if groups > 1:
        columns = len(union)
        inside = torch.zeros(groups, columns + 1, dtype=torch.bool, device=logits.device)
        places = torch.where(places < 0, columns, places).long()  # padding maps to the last column
        inside.scatter_(1, places.view(groups, -1), True)
        logits = logits.masked_fill(~of_rows(inside[:, :columns], len(logits)), float("-inf"))
    return logits, union


def of_rows(values: Tensor, rows: int) -> Tensor:
    """Repeat the values of groups (G, C) for their rows: (N, C), N / G rows per group."""
    groups, columns = values.shape
    return values[:, None].expand(-1, rows // groups, -1).reshape(rows, columns)
