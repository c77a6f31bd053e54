"""Which tokens stand above a token, and which of them are on a shortlist: what a replay asks of many scores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...ops.ordering import topk_lowest_id

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


_SAMPLE = 4096  # scores of a row that its pivot is read from


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


class OnList(NamedTuple):
    """For B rows, what of a shortlist stands above the wanted token.

    ``above`` (B,) int64: pairs on the list, exact below ``width`` and at least ``width`` otherwise; of no meaning where
    the wanted token is one to choose from and not ``inside``. ``inside`` bool (B,): it is on the list.
    """

    above: Tensor
    inside: Tensor


def on_lists(
    scores: Tensor, pairs: Pairs, wanted: Tensor, lists: Sequence[Shortlist], width: int
) -> list[OnList]:
    """Ask several shortlists by the same scores.

    Args:
        scores: (B, R) fp32 that the lists choose by.
        pairs: what stands above the wanted tokens by exact logits.
        wanted: (B,) int64 head rows; -1: none, which is on no list.
        width: see :class:`OnList`.
    """
    asked = _on_device if scores.is_cuda else _on_host
    return asked(scores, pairs, wanted, lists, width)


def _on_device(
    scores: Tensor, pairs: Pairs, wanted: Tensor, lists: Sequence[Shortlist], width: int
) -> list[OnList]:
    deepest = min(max(one.depth for one in lists), scores.shape[-1])
    values, columns = topk_lowest_id(scores, deepest)  # (B, n) best first
    of_pairs = scores[pairs.rows, pairs.columns]
    places = wanted.clamp(min=0)
    of_wanted = scores.gather(-1, places[:, None])[:, 0]
    found = []
    for one in lists:
        last = torch.full((len(scores), 1), one.size - 1, device=scores.device)
        if one.without is not None:
            last = ((~one.without)[columns].cumsum(-1) < one.size).sum(-1, keepdim=True)
        score, row = values.gather(-1, last)[:, 0], columns.gather(-1, last)[:, 0]
        member = _holds(of_pairs, pairs.columns, score[pairs.rows], row[pairs.rows])
        inside = _holds(of_wanted, places, score, row) & (wanted >= 0)
        if one.without is not None:
            member, inside = member & ~one.without[pairs.columns], inside & ~one.without[places]
        found.append(OnList(pairs.count(member), inside))
    return found


def _holds(scores: Tensor, columns: Tensor, score: Tensor, row: Tensor) -> Tensor:
    """Not behind the last one of a list, whose score and head row these are."""
    return (scores > score) | ((scores == score) & (columns <= row))


def _on_host(
    scores: Tensor, pairs: Pairs, wanted: Tensor, lists: Sequence[Shortlist], width: int
) -> list[OnList]:
    count = np.zeros((len(lists), len(scores)), np.int64)
    inside = np.zeros((len(lists), len(scores)), np.bool_)
    groups: dict[int, list[int]] = {}  # lists that choose from the same head rows
    for number, one in enumerate(lists):
        groups.setdefault(id(one.without), []).append(number)
    kept = [None if one.without is None else ~one.without.numpy() for one in lists]
    sizes = [np.array([lists[number].size for number in numbers]) for numbers in groups.values()]
    depth = min(max(one.depth for one in lists), scores.shape[-1])
    table, columns, ends = scores.numpy(), pairs.columns.numpy(), pairs.ends.tolist()
    tokens = wanted.tolist()

    def some(rows: range) -> None:
        for place in rows:
            row, token = table[place], tokens[place]
            if token < 0:
                continue
            outside = np.count_nonzero(row > row[token]) >= depth  # on no list, whatever stands above it
            above = columns[ends[place] : ends[place + 1]]
            for numbers, limits in zip(groups.values(), sizes):
                keep = kept[numbers[0]]
                chosen_from = keep is None or bool(keep[token])
                if chosen_from and outside:
                    continue
                best = _best(row, above if keep is None else above[keep[above]], width)
                asked = np.append(best, token) if chosen_from else best
                found = _places(row, keep, asked, depth)
                count[numbers, place] = (found[: len(best)] < limits[:, None]).sum(-1)
                if chosen_from:
                    inside[numbers, place] = found[-1] < limits

    in_threads(some, len(scores))
    return [OnList(torch.from_numpy(one), torch.from_numpy(other)) for one, other in zip(count, inside)]


def _best(row: Row, columns: Row, width: int) -> Row:
    """The ``width`` best of some ascending head rows, in any order."""
    if len(columns) <= width:
        return columns
    order = np.argsort(-row[columns], kind="stable")
    return columns[order[:width]]


def _places(row: Row, keep: Row | None, asked: Row, depth: int) -> Row:
    """Places of head rows among those that are kept, best first; what is behind ``depth`` may have any place there."""
    if not len(asked):
        return asked
    pool = np.flatnonzero(row >= row[asked].min())
    if len(pool) > 2 * depth:
        pool = _pool(row, depth)
    if keep is not None:
        pool = pool[keep[pool]]
    values = row[pool]
    found = [
        np.count_nonzero(values > row[one]) + np.count_nonzero(pool[values == row[one]] < one)
        for one in asked
    ]
    return np.array(found, np.int64)


def _pool(row: Row, most: int) -> Row:
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
