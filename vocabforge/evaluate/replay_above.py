"""What stands above a token: the question that a replay asks of many scores.

The order is the heads' own: the higher score, then the lower head row (rows ascend by target id). On the host numpy
answers it a row at a time, ten times as fast as the same operations of PyTorch; on a GPU all rows at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

Row = np.ndarray[Any, Any]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Pairs:
    """For B rows the head rows above each one's token.

    Attributes:
        rows, columns: (n,) int64 row and head row of every pair, by row.
        ends: (B + 1,) int64 pairs before each row, and all of them.
    """

    rows: Tensor
    columns: Tensor
    ends: Tensor

    def count(self, member: Tensor | None = None) -> Tensor:
        """(B,) int64 pairs of each row; with ``member``, bool (n,), those that hold."""
        if member is None:
            return self.ends.diff()
        return F.pad(member.cumsum(0), (1, 0))[self.ends].diff()


def above(scores: Tensor, wanted: Tensor) -> Pairs:
    """What is ordered before a token.

    Args:
        scores: (B, R) fp32.
        wanted: (B,) int64 head row of each row's token; -1: none, and nothing is above it.
    """
    return _above_on_device(scores, wanted) if scores.is_cuda else _above_on_host(scores, wanted)


def _above_on_device(scores: Tensor, wanted: Tensor) -> Pairs:
    best = scores.gather(-1, wanted.clamp(min=0)[:, None])
    lower = torch.arange(scores.shape[-1], device=scores.device) < wanted[:, None]
    mask = (scores > best) | ((scores == best) & lower)
    mask &= (wanted >= 0)[:, None]
    rows, columns = mask.nonzero(as_tuple=True)
    return Pairs(rows, columns, F.pad(mask.sum(-1).cumsum(0), (1, 0)))


def _above_on_host(scores: Tensor, wanted: Tensor) -> Pairs:
    table, places = scores.numpy(), wanted.tolist()

    def some(rows: range) -> list[Row]:
        return [_above_in_row(table[row], places[row]) for row in rows]

    found = [one for part in in_threads(some, len(places)) for one in part]
    sizes = [len(one) for one in found]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.concatenate([np.empty(0, np.int64), *found])
    ends = np.cumsum([0, *sizes])
    return Pairs(torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(ends))


def _above_in_row(row: Row, place: int) -> Row:
    """Ascending columns above one; none above -1."""
    if place < 0:
        return np.empty(0, np.int64)
    higher = np.flatnonzero(row > row[place])
    tied = np.flatnonzero(row[:place] == row[place])
    return np.union1d(higher, tied) if len(tied) else higher


def in_threads(work: Callable[[range], _T], rows: int) -> list[_T]:
    """``work`` on all rows, in as many parts as PyTorch has threads: numpy lets others run while it works on a row."""
    parts = max(1, min(torch.get_num_threads(), rows))
    bounds = [rows * number // parts for number in range(parts + 1)]
    shares = [range(begin, end) for begin, end in itertools.pairwise(bounds)]
    if parts == 1:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(work, shares))
