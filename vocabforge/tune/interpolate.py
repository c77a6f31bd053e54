"""Times between measured sizes: piecewise linear, and never falling as a size grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..decode.control_estimates import isotonic
from .types import Seconds


class Sample(NamedTuple):
    """A measured time at some sizes.

    Attributes:
        at: size by axis.
        weight: how many measurements it stands for.
    """

    at: Mapping[str, int]
    seconds: Seconds
    weight: int


class Found(NamedTuple):
    """An answer, and the axes on which it lies beyond what was measured."""

    seconds: Seconds
    beyond: frozenset[str]


def interpolate(samples: Sequence[Sample], axes: Sequence[str], at: Mapping[str, int]) -> Found:
    """The time at some sizes, from samples that need not fill a grid.

    Axis by axis: the samples of each measured size of the first axis answer for the others, then the line between
    the two sizes next to the wanted one is read. Answers along an axis are made not to fall first
    (isotonic regression). Above the largest size the last line goes on; below the smallest its time holds, which is
    too much rather than too little. An axis with one measured size changes nothing.

    Args:
        samples: at least one.
        axes: those to interpolate on; all samples and ``at`` name them.
        at: wanted sizes.
    """
    ranges = {axis: [sample.at[axis] for sample in samples] for axis in axes}
    beyond = {axis for axis, sizes in ranges.items() if not min(sizes) <= at[axis] <= max(sizes)}
    return Found(_between(samples, axes, at), frozenset(beyond))


def _between(samples: Sequence[Sample], axes: Sequence[str], at: Mapping[str, int]) -> Seconds:
    if not axes:
        return _mean(samples)
    axis, rest = axes[0], axes[1:]
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.at[axis], []).append(sample)
    sizes, wanted = sorted(groups), at[axis]
    found = [_between(groups[size], rest, at) for size in sizes]
    weights = [sum(sample.weight for sample in groups[size]) for size in sizes]
    columns = (isotonic([one[place] for one in found], weights) for place in range(3))
    return Seconds(*(line_at(sizes, column, wanted) for column in columns))


def _mean(samples: Sequence[Sample]) -> Seconds:
    """Of repeated measurements of the same sizes."""
    weight = sum(sample.weight for sample in samples)
    return Seconds(
        *(sum(sample.seconds[place] * sample.weight for sample in samples) / weight for place in range(3))
    )


def _neighbours(sizes: Sequence[int], wanted: int) -> list[int]:
    """Places of the sizes that an answer is read from."""
    above = next((place for place, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)
    if sizes[above] == wanted or above == 0:
        return [above]
    return [above - 1, above]


def line_at(sizes: Sequence[int], values: Sequence[float], wanted: int) -> float:
    """Read a piecewise linear curve; outside it as :func:`interpolate` says.

    Args:
        sizes: ascending.
        values: one a size, never falling.
    """
    near = _neighbours(sizes, wanted)
    if len(near) == 1:
        return values[near[0]]
    low, high = near
    slope = (values[high] - values[low]) / (sizes[high] - sizes[low])
    return values[low] + slope * (wanted - sizes[low])
