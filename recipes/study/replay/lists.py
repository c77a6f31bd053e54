"""Which tokens are ordered before a token, and which of them are on a shortlist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vocabforge.ops.ordering import topk_lowest_id


@dataclass(frozen=True)
class Pairs:
    """For each of B rows, the head rows that are ordered before the row's token.

    Attributes:
        batch: B.
        rows, columns: (n,) int64 row and head row of every pair, by row.
    """

    batch: int
    rows: Tensor
    columns: Tensor

    def count(self, member: Tensor) -> Tensor:
        """(B,) int64 pairs of each row that are members, bool (n,)."""
        return self.rows[member].bincount(minlength=self.batch)

    def where(self, member: Tensor) -> Pairs:
        """Only the members, bool (n,)."""
        return Pairs(self.batch, self.rows[member], self.columns[member])


def above(scores: Tensor, wanted: Tensor) -> Pairs:
    """Head rows with a higher score than a token's, or with an equal one and a lower number.

    Args:
        scores: (B, R) fp32.
        wanted: (B,) int64 head row of each row's token; -1: none, and nothing is above it.
    """
    best = scores.gather(-1, wanted.clamp(min=0)[:, None])[:, 0].masked_fill(wanted < 0, math.inf)
    found = Pairs(len(wanted), *(scores >= best[:, None]).nonzero(as_tuple=True))
    higher = scores[found.rows, found.columns] > best[found.rows]
    return found.where(higher | (found.columns < wanted[found.rows]))


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
    """For B rows: (B,) int64 pairs that are on a shortlist, and bool (B,) whether the wanted token is."""

    above: Tensor
    inside: Tensor


def on_lists(scores: Tensor, pairs: Pairs, wanted: Tensor, lists: Sequence[Shortlist]) -> list[OnList]:
    """Ask several shortlists by the same scores.

    Args:
        scores: (B, R) fp32 that the lists choose by.
        pairs: what is above the wanted tokens by exact logits.
        wanted: (B,) int64 head rows; -1: none, which is on no list.
    """
    values, columns = topk_lowest_id(scores, min(max(one.depth for one in lists), scores.shape[-1]))
    pairs = pairs.where(scores[pairs.rows, pairs.columns] >= values[pairs.rows, -1])
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
