"""Which tokens are on a shortlist: a row's best by a cheap score, of which a replay asks only few.

A list is asked about the token that is wanted and about what stands above it by exact logits. Only whether fewer than
``width`` of these are on the list matters, so only the ``width`` best of them by the cheap score are placed: what comes
behind them is on the list only if they all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..ops.ordering import topk_lowest_id
from .replay_above import Pairs, Row, in_threads

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
