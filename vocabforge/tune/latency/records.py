"""What a latency file holds: times by part and size, and the fitted rest."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from ...core.config import Positive, StrictModel

Time = Annotated[float, Field(ge=0)]
# part -> the sizes that its time depends on, in the order in which they are interpolated
AXES: dict[str, tuple[str, ...]] = {
    "head": ("batch", "topk", "core", "scored"),
    "start": ("batch",),
    "layer": ("batch", "topk", "prefix"),
    "grow": ("batch", "topk"),
    "choose": ("batch", "history", "nodes"),
    "verify": ("batch", "prefix", "nodes"),
    "commit": ("batch", "levels", "prefix"),
    "rest": ("batch", "levels"),
    "plain": ("batch", "prefix"),
    "prefill": ("tokens",),
}


class PartKey(NamedTuple):
    """Where a measured time belongs: part of a cycle, family, and sizes in the order of the part's axes."""

    name: str
    family: str
    sizes: tuple[int, ...]


def place_of(name: str, family: str, **sizes: int) -> PartKey:
    """A key by named sizes; those that the part does not depend on are ignored."""
    return PartKey(name, family, tuple(sizes[axis] for axis in AXES[name]))


class Point(StrictModel):
    """One measured time: the mean of ``count``, bounds of most rounds' means, and ``at``, size by axis."""

    at: dict[str, Annotated[int, Field(ge=0)]]
    seconds: Time
    low: Time
    high: Time
    count: Positive


class MeasuredPart(StrictModel):
    """All times of one part of a cycle.

    Attributes:
        family: what no interpolation crosses: kind of tree, draft head, place in the drafting.
    """

    name: str
    family: str
    points: Annotated[tuple[Point, ...], Field(min_length=1)]


class Rest(StrictModel):
    """Seconds that real cycles take beside their measured parts, fitted; below 0 if parts overlap."""

    per_cycle: float = 0.0
    per_level: float = 0.0
    per_row: float = 0.0

    def of(self, levels: int, batch: int) -> float:
        return self.per_cycle + self.per_level * levels + self.per_row * (batch - 1)


class Shapes(StrictModel):
    """Sizes of a model that times depend on; the fingerprint of its weights is for the record."""

    kind: str
    hidden_size: Positive
    vocab_size: Positive
    layers: Positive
    parameters: Positive
    fingerprint: str = ""
