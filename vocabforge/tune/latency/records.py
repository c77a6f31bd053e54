"""What a latency file holds: times by part and size, the fitted rest, and real cycles beside their predictions."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from ...core.config import Positive, StrictModel
from ..types import CycleSetting

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
    """Where a measured time belongs: a part of a cycle, its family, and the sizes in the order of the part's axes."""

    name: str
    family: str
    sizes: tuple[int, ...]


def place_of(name: str, family: str, **sizes: int) -> PartKey:
    """A place by named sizes; those that the part does not depend on are left out."""
    return PartKey(name, family, tuple(sizes[axis] for axis in AXES[name]))


class Point(StrictModel):
    """One measured time.

    Attributes:
        at: size by axis of ``AXES``.
        seconds: mean; ``low`` and ``high`` bound most means of the measuring rounds.
        count: measurements.
    """

    at: dict[str, Annotated[int, Field(ge=0)]]
    seconds: Time
    low: Time
    high: Time
    count: Positive


class MeasuredPart(StrictModel):
    """All times of one part of a cycle.

    Attributes:
        name: of ``AXES``.
        family: what no interpolation crosses: kind of tree, draft head, place in the drafting.
    """

    name: str
    family: str
    points: Annotated[tuple[Point, ...], Field(min_length=1)]


class Rest(StrictModel):
    """What real cycles take beside their measured parts, fitted to a few of them.

    Attributes:
        per_cycle, per_level, per_row: seconds; below 0 where parts overlap or were timed with their timers.
    """

    per_cycle: float = 0.0
    per_level: float = 0.0
    per_row: float = 0.0

    def of(self, levels: int, batch: int) -> float:
        """Seconds beside the parts."""
        return self.per_cycle + self.per_level * levels + self.per_row * (batch - 1)


class CycleCheck(StrictModel):
    """A real cycle beside its prediction.

    Attributes:
        fitted: it was among those that :class:`Rest` was fitted to.
        predicted, measured: mean seconds.
        low, high: bounds of the prediction.
    """

    setting: CycleSetting
    fitted: bool
    predicted: float
    low: float
    high: float
    measured: Time
    cycles: Positive

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


class Shapes(StrictModel):
    """Sizes that times depend on: a table holds for models of the same ones, whatever their weights.

    Attributes:
        fingerprint: of the weights; for the record.
    """

    kind: str
    hidden_size: Positive
    vocab_size: Positive
    layers: Positive
    parameters: Positive
    fingerprint: str = ""
