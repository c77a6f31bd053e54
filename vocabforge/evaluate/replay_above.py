"""What stands above a token, and where a shortlist ends: the two questions that a replay asks of many scores.

The order is the heads' own: the higher score, then the lower head row (rows ascend by target id). On the host numpy
answers them a row at a time, ten times as fast as the same operations of PyTorch; on a GPU all rows at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..models.heads import topk_lowest_id

_SAMPLE = 4096  # scores of a row that its pivot is read from
_Row = np.ndarray[Any, Any]
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

    def some(rows: range) -> list[_Row]:
        return [_above_in_row(table[row], places[row]) for row in rows]

    found = [one for part in _in_threads(some, len(places)) for one in part]
    sizes = [len(one) for one in found]
    rows = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.concatenate([np.empty(0, np.int64), *found])
    ends = np.cumsum([0, *sizes])
    return Pairs(torch.from_numpy(rows), torch.from_numpy(columns), torch.from_numpy(ends))


def _above_in_row(row: _Row, place: int) -> _Row:
    """Ascending columns above one; none above -1."""
    if place < 0:
        return np.empty(0, np.int64)
    higher = np.flatnonzero(row > row[place])
    tied = np.flatnonzero(row[:place] == row[place])
    return np.union1d(higher, tied) if len(tied) else higher


def _in_threads(work: Callable[[range], _T], rows: int) -> list[_T]:
    """``work`` on all rows, in as many parts as PyTorch has threads: numpy lets others run while it works on a row."""
    parts = max(1, min(torch.get_num_threads(), rows))
    bounds = [rows * number // parts for number in range(parts + 1)]
    shares = [range(begin, end) for begin, end in itertools.pairwise(bounds)]
    if parts == 1:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(parts) as pool:
        return list(pool.map(work, shares))


@dataclass(frozen=True)
class Shortlist:
    """A row's best by a score.

    Attributes:
        size: how many, at most what there are.
        without: bool (R,) head rows that are not chosen from; None: all are.
    """

    size: int
    without: Tensor | None = None

    @cached_property
    def depth(self) -> int:
        """How many of the best of all head rows hold it."""
        return self.size + (0 if self.without is None else int(self.without.sum()))


@dataclass(frozen=True)
class Border:
    """The last one inside the shortlist of each row: its score (B,) fp32 and its head row (B,) int64."""

    score: Tensor
    row: Tensor

    def holds(self, scores: Tensor, columns: Tensor, rows: Tensor | None = None) -> Tensor:
        """Which of (n,) scores of head rows ``columns`` are inside; ``rows`` says whose they are, else one a row."""
        score, last = (self.score, self.row) if rows is None else (self.score[rows], self.row[rows])
        return (scores > score) | ((scores == score) & (columns <= last))


def borders(scores: Tensor, lists: Sequence[Shortlist]) -> list[Border]:
    """The borders of several shortlists by the same scores (B, R) fp32.

    Each has at least one member.
    """
    return _borders_on_device(scores, lists) if scores.is_cuda else _borders_on_host(scores, lists)


def _deepest(lists: Sequence[Shortlist], size: int) -> int:
    """How many of the best hold all of every shortlist."""
    return min(max(one.depth for one in lists), size)


def _borders_on_device(scores: Tensor, lists: Sequence[Shortlist]) -> list[Border]:
    values, columns = topk_lowest_id(scores, _deepest(lists, scores.shape[-1]))  # (B, n) best first
    found = []
    for one in lists:
        place = torch.full((len(scores), 1), one.size - 1, device=scores.device)
        if one.without is not None:
            inside = (~one.without)[columns].cumsum(-1)
            place = (inside < one.size).sum(-1, keepdim=True)
        found.append(Border(values.gather(-1, place)[:, 0], columns.gather(-1, place)[:, 0]))
    return found


def _borders_on_host(scores: Tensor, lists: Sequence[Shortlist]) -> list[Border]:
    most = _deepest(lists, scores.shape[-1])
    by_without: dict[int, list[int]] = {}  # shortlists that choose from the same head rows
    for number, one in enumerate(lists):
        by_without.setdefault(id(one.without), []).append(number)
    kept = [None if one.without is None else ~one.without.numpy() for one in lists]
    score = np.empty((len(lists), len(scores)), np.float32)
    last = np.empty((len(lists), len(scores)), np.int64)
    table = scores.numpy()

    def some(rows: range) -> None:
        for place in rows:
            row = table[place]
            pool = _pool(row, most)
            for numbers in by_without.values():
                keep = kept[numbers[0]]
                columns = pool if keep is None else pool[keep[pool]]
                sizes = [lists[number].size for number in numbers]
                for number, (value, column) in zip(numbers, _last_ones(row[columns], columns, sizes)):
                    score[number, place], last[number, place] = value, column

    _in_threads(some, len(scores))
    return [Border(torch.from_numpy(one), torch.from_numpy(other)) for one, other in zip(score, last)]


def _pool(row: _Row, most: int) -> _Row:
    """Ascending head rows among which the ``most`` best are: cut by a pivot from a sample, which may be far off."""
    size = len(row)
    sample = row[:: max(1, size // _SAMPLE)]
    share = most / size * len(sample)
    taken = math.ceil(share + 4 * math.sqrt(share) + 4)  # four deviations more: the pivot is seldom too high
    if taken < len(sample):
        pool = np.flatnonzero(row >= np.partition(sample, len(sample) - taken)[len(sample) - taken])
        if len(pool) >= most:
            return pool
    return np.arange(size)


def _last_ones(values: _Row, columns: _Row, sizes: Sequence[int]) -> list[tuple[float, int]]:
    """Score and head row of the last of the best of each size; ``columns`` ascend."""
    places = [len(values) - size for size in sizes]
    ordered = np.partition(values, places)
    found = []
    for size, place in zip(sizes, places):
        border = ordered[place]
        tied = columns[values == border]
        before = np.count_nonzero(values > border)
        found.append((float(border), int(tied[size - before - 1])))
    return found
