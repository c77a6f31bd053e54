"""Where a measured time belongs, and which times of a run count."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from .records import AXES

OUTLIER = 3.0  # a cycle of more than this many times its run's median met something else


class Place(NamedTuple):
    """A part of a cycle and its family, and the sizes in the order of the part's axes."""

    name: str
    family: str
    sizes: tuple[int, ...]


def place_of(name: str, family: str, **sizes: int) -> Place:
    """A place by named sizes; those that the part does not depend on are left out."""
    return Place(name, family, tuple(sizes[axis] for axis in AXES[name]))


def usual(seconds: Sequence[float]) -> list[int]:
    """Places of the cycles of a run that are no outliers."""
    most = OUTLIER * median(seconds)
    return [place for place, one in enumerate(seconds) if one <= most]
