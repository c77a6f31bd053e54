"""Which draft rows the fused loss takes together, and in what order.

Draft rows that share a teacher are taken together, so that the teacher is computed once. Inside a chunk the teachers
come by falling number of rows, and the rows by their rank within their teacher: the rank-j rows of a chunk then
belong to its first n_j teachers, and both are plain slices, with nothing of size (rows, V) gathered.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Costs:
    """Workspace in bytes: of a chunk's ``teacher`` and of its draft ``row``."""

    teacher: int
    row: int


@dataclass(frozen=True)
class Chunk:
    """A slice of the plan's rows and teachers; ``ranks[j]`` rows have rank j within their teacher."""

    rows: slice
    teachers: slice
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The order of work.

    Attributes:
        rows: (M,) draft rows, each once.
        teachers: (G,) teacher of every group of rows.
    """

    rows: Int
    teachers: Int
    chunks: tuple[Chunk, ...]


def make_plan(teacher_row: Int, costs: Costs, budget: int) -> Plan:
    """Chunks of at most ``budget`` bytes, but at least one row.

    Args:
        teacher_row: (M,) teacher of each draft row.
    """
    if len(teacher_row) == 0:
        return Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), ())
    by_teacher = np.argsort(teacher_row, kind="stable")
    ordered = teacher_row[by_teacher]
    rank = _rank_in_runs(ordered)
    most = max(1, (budget - costs.teacher) // costs.row)  # rows of one teacher beyond it form a further group
    first = rank % most == 0
    group, rank = np.cumsum(first) - 1, rank % most
    counts = np.bincount(group)
    place = np.empty_like(counts)
    falling = np.argsort(-counts, kind="stable")
    place[falling] = np.arange(len(counts))
    group, counts, teachers = place[group], counts[falling], ordered[first][falling]

    bounds = _bounds(costs.teacher + counts * costs.row, budget)
    chunk_of_group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = np.lexsort((group, rank, chunk_of_group[group]))
    ends = np.concatenate([[0], np.cumsum(counts)])
    chunks = tuple(
        Chunk(slice(int(ends[a]), int(ends[b])), slice(int(a), int(b)), _ranks(counts[a:b]))
        for a, b in itertools.pairwise(bounds)
    )
    return Plan(by_teacher[order], teachers, chunks)


def _rank_in_runs(ordered: Int) -> Int:
    """0, 1, 2, ... within every run of equal values."""
    index = np.arange(len(ordered))
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def _bounds(sizes: Int, budget: int) -> list[int]:
    """Cut groups into runs of at most ``budget`` bytes, greedily: 0, ..., len(sizes)."""
    total = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        at = bounds[-1]
        before = int(total[at - 1]) if at else 0
        bounds.append(max(at + 1, int(np.searchsorted(total, before + budget, side="right"))))
    return bounds


def _ranks(counts: Int) -> tuple[int, ...]:
    """How many of the groups have a row of rank 0, 1, ..."""
    return tuple(int((counts > j).sum()) for j in range(int(counts.max())))
