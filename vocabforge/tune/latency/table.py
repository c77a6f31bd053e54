"""The latency table: what was measured on one machine, and what a cycle of other sizes takes there.

A cycle is the sum of its parts (docs/speculation-theory.md): drafting (the draft head and the drafter's layer a level,
growing and choosing the tree), the target's verification, committing, and a rest fitted to real cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ...core.config import Positive, StrictModel
from ...core.console import value_text
from ...core.errors import DataError, MismatchError
from ...core.files import atomic_write
from ...core.records import read_versioned
from ...decode.control.estimates import isotonic
from ..types import CycleSetting, Seconds, total
from .records import AXES, MeasuredPart, Point, Rest, Shapes, Time

LATENCY = "latency.json"
SCHEMA_VERSION = 1


def interpolate(points: Sequence[Point], axes: Sequence[str], at: Mapping[str, int]) -> Seconds:
    """The time at some sizes, from measured ones that need not fill a grid.

    Axis by axis: the times of each measured size of the first axis answer for the others, then the line between
    the two sizes next to the wanted one is read. Answers along an axis are made not to fall (isotonic regression).
    Above the largest size the last line continues; below the smallest its time holds, which is too much rather than
    too little.
    """
    if not axes:  # repeated measurements of the same sizes
        count = sum(one.count for one in points)
        columns = zip(
            *((one.seconds * one.count, one.low * one.count, one.high * one.count) for one in points)
        )
        return Seconds(*(sum(column) / count for column in columns))
    axis, rest = axes[0], axes[1:]
    groups: dict[int, list[Point]] = {}
    for one in points:
        groups.setdefault(one.at[axis], []).append(one)
    sizes = sorted(groups)
    found = [interpolate(groups[size], rest, at) for size in sizes]
    weights = [sum(one.count for one in groups[size]) for size in sizes]
    rising = (isotonic([one[place] for one in found], weights) for place in range(3))
    return Seconds(*(_line_at(sizes, column, at[axis]) for column in rising))


def _line_at(sizes: Sequence[int], values: Sequence[float], wanted: int) -> float:
    """Read a piecewise linear curve over ascending sizes; outside it as :func:`interpolate` says."""
    above = next((place for place, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)
    if sizes[above] == wanted or above == 0:
        return values[above]
    low, high = above - 1, above
    slope = (values[high] - values[low]) / (sizes[high] - sizes[low])
    return values[low] + slope * (wanted - sizes[low])


class LatencyTable(StrictModel):
    """What was measured on one machine with one target and one drafter.

    Attributes:
        graphs: cycles were captured as graphs.
        error: relative error of predicted cycles (root mean square over real ones), which widens bounds.
        notes: what was left out, and why.
    """

    schema_version: Literal[1] = 1
    vocabforge: str
    environment: dict[str, Any]
    dtype: str
    graphs: bool
    target: Shapes
    drafter: Shapes
    parts: tuple[MeasuredPart, ...]
    rest: Rest = Rest()
    error: Time = 0.0
    checks: tuple[Any, ...] = ()  # of earlier versions
    notes: tuple[str, ...] = ()
    rounds: Positive = 1
    seconds: Time = 0.0

    def cycle(self, setting: CycleSetting) -> Seconds:
        """Mean seconds of one cycle (draft, verify, commit) of all requests of a batch.

        Raises:
            MismatchError: a part of it was never measured.
        """
        value, low, high = self.parts_total(setting)
        return Seconds(value, max(0.0, low * (1 - self.error)), high * (1 + self.error))

    def parts_total(self, setting: CycleSetting) -> Seconds:
        """The same before the error of predictions widens its bounds."""
        tree, sizes, head = setting.tree, setting.sizes, setting.head
        parts = [
            self._at("start", "", sizes),
            self._at("choose", tree.kind, sizes),
            self._at("verify", tree.kind, sizes),
            self._at("commit", tree.kind, sizes),
        ]
        for step in range(tree.levels):
            sizes["scored"] = head.at(step)
            parts.append(self._at("head", head_family(head.family, first=step == 0), sizes))
            place = "first" if step == 0 else "last" if step == tree.depth else "further"
            parts.append(self._at("grow", f"{tree.kind} {place}", sizes))
        if tree.depth:
            parts.append(self._at("layer", tree.kind, sizes).times(tree.depth))
        if ("rest", "") in self._by_name:  # of captured cycles all of it is fitted
            parts.append(self._at("rest", "", sizes))
        fitted = self.rest.of(tree.levels, setting.batch)
        return total([*parts, Seconds(fitted, fitted, fitted)])

    def plain(self, batch: int = 1, prefix: int = 1) -> Seconds:
        """Mean seconds of one step of plain decoding of all requests of a batch.

        Raises:
            MismatchError: it was never measured.
        """
        return self._at("plain", "", {"batch": batch, "prefix": prefix})

    def prefill(self, tokens: int, *, drafting: bool = True) -> Seconds:
        """Mean seconds of reading one prompt up to its first new token, with the drafter's part if it drafts.

        Raises:
            MismatchError: it was never measured.
        """
        family = "drafting" if drafting else "plain"
        return self._at("prefill", family, {"tokens": tokens})

    def check_shapes(self, target: Shapes, drafter: Shapes, *, source: object) -> None:
        """Refuse to predict for models of other sizes.

        Raises:
            MismatchError: a size differs.
        """
        for what, ours, theirs in (("target", self.target, target), ("drafter", self.drafter, drafter)):
            got, expected = (one.model_dump(exclude={"fingerprint"}) for one in (ours, theirs))
            if got != expected:
                raise MismatchError(
                    f"the latency file was measured with a {what} of other sizes",
                    got=value_text(got),
                    expected=value_text(expected),
                    source=source,
                    remedy="run tune --measure-only with this target and drafter on that machine",
                )

    @cached_property
    def _answers(self) -> dict[tuple[object, ...], Seconds]:
        return {}

    def _at(self, name: str, family: str, sizes: Mapping[str, int]) -> Seconds:
        key = (name, family, *(sizes[axis] for axis in AXES[name]))
        if key not in self._answers:
            self._answers[key] = interpolate(self._points(name, family), AXES[name], sizes)
        return self._answers[key]

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Sequence[Point]]:
        return {(part.name, part.family): part.points for part in self.parts}

    def _points(self, name: str, family: str) -> Sequence[Point]:
        points = self._by_name.get((name, family))
        if points is None:
            measured = sorted(other for part, other in self._by_name if part == name)
            raise MismatchError(
                "the latency table lacks a part of this method",
                got=", ".join(filter(None, measured)) or f"nothing of {name}",
                expected=f"{name} {family}".rstrip(),
                remedy="measure again with this kind of tree and draft head",
            )
        return points


def head_family(family: Iterable[object], *, first: bool) -> str:
    """Name of a head's times in the table: at the root, whose rows are one a request, or further down."""
    return f"{' '.join(map(str, family))} {'first' if first else 'further'}"


def write_latency(path: Path, table: LatencyTable) -> None:
    """Write a table; a reader sees all of it or none."""
    atomic_write(path, table.model_dump_json(indent=1) + "\n")


def read_latency(path: Path) -> LatencyTable:
    """Read ``latency.json`` from its path or from the folder that holds it.

    Raises:
        DataError: missing file, another version, or a value that the table cannot have.
    """
    file = path / LATENCY if path.is_dir() else path
    table = read_versioned(
        file, LatencyTable, SCHEMA_VERSION, what="latency file", remedy="run tune --measure-only again"
    )
    _check_parts(table, file)
    return table


def _check_parts(table: LatencyTable, file: Path) -> None:
    for part in table.parts:
        axes = AXES.get(part.name)
        for point in part.points:
            if axes is None or set(point.at) != set(axes):
                raise DataError(
                    "the latency file does not fit its schema",
                    got=f"{part.name} by {', '.join(sorted(point.at))}",
                    expected=f"a part of {', '.join(AXES)}" if axes is None else f"by {', '.join(axes)}",
                    source=file,
                )
