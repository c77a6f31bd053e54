"""Times of a large shape's heads and passes, and what a cycle of them takes: part of ``times.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ..core.config import Positive, StrictModel
from ..core.errors import MismatchError
from ..tune.records import Time
from ..tune.table import Interpolated, TimeSample, interpolate
from ..tune.types import HeadSetting, Seconds, TreeSetting, total
from .roofline import SLABS


class Timed(StrictModel):
    """One measured time.

    Attributes:
        rows: hidden rows of the step, or tokens of the pass.
        seconds: median of the rounds; ``low`` and ``high`` bound most such medians.
        count: rounds.
    """

    rows: Positive
    seconds: Time
    low: Time
    high: Time
    count: Positive

    @property
    def bounds(self) -> Seconds:
        return Seconds(self.seconds, self.low, self.high)


class HeadTime(Timed):
    """The same of a draft head; ``setting`` has one ``scored`` size."""

    setting: HeadSetting


class Cycle(NamedTuple):
    """Seconds of a cycle, those of its draft head among them, and on which sizes nothing was measured."""

    seconds: Seconds
    head: Seconds
    notes: tuple[str, ...]


class ShapeTimes(StrictModel):
    """What was measured of one shape on one machine, with random weights.

    Attributes:
        hidden, rows, layers: H, V and number of layers of the target.
        prefix: positions that caches held.
        heads: draft heads.
        drafter: its layer with the norm behind it, by rows.
        target: one of the target's layers, by rows; ``logits`` its LM head and the choice.
        fuse: the target's features fused, once a cycle.
        notes: what was left out, and why.
    """

    hidden: Positive
    rows: Positive
    layers: Positive
    prefix: Annotated[int, Field(ge=0)]
    dtype: str
    environment: dict[str, Any]
    heads: tuple[HeadTime, ...]
    drafter: tuple[Timed, ...]
    target: tuple[Timed, ...]
    logits: tuple[Timed, ...]
    fuse: tuple[Timed, ...]
    notes: tuple[str, ...] = ()
    rounds: Positive = 1
    seconds: Time = 0.0

    def head_at(self, setting: HeadSetting, rows: int, step: int = 0) -> Interpolated:
        """Seconds of a head in one draft step, between what was measured of its family.

        Raises:
            MismatchError: no head of its family was measured.
        """
        samples = self._by_family.get(time_family(setting))
        if samples is None:
            raise MismatchError(
                "the times of the larger shape lack this kind of draft head",
                got=", ".join(sorted(one.setting.label for one in self.heads)) or "no head",
                expected=setting.label,
                remedy="run the stage times again with a longer times.shape_budget_s",
            )
        at = {"rows": rows, "core": setting.core, "scored": setting.at(step)}
        return interpolate(samples, ("rows", "core", "scored"), at)

    def target_pass(self, nodes: int) -> Seconds:
        """The whole target over so many tokens, with its LM head."""
        layers = self._pass(self.target, nodes).times(self.layers)
        return total([layers, self._pass(self.logits, nodes)])

    def plain(self) -> Seconds:
        """One step of plain decoding."""
        return self.target_pass(1)

    def cycle(self, setting: HeadSetting, tree: TreeSetting) -> Cycle:
        """One speculative cycle of one request: a head and a layer a level, and the target over all nodes.

        The first level has one row, further ones ``topk``. What the host adds is not in it.

        Raises:
            MismatchError: see :meth:`head_at`.
        """
        heads, notes = [], dict[str, None]()
        for step in range(tree.levels):
            found = self.head_at(setting, tree.topk if step else 1, step)
            heads.append(found.seconds)
            notes |= {f"head: {axis} beyond what was measured": None for axis in sorted(found.beyond)}
        passes = [self._pass(self.drafter, 1), self._pass(self.drafter, tree.topk).times(tree.depth)]
        head = total(heads)
        rest = [*passes, self._pass(self.fuse, 1), self.target_pass(tree.total)]
        return Cycle(total([head, *rest]), head, tuple(notes))

    @cached_property
    def _by_family(self) -> dict[tuple[object, ...], list[TimeSample]]:
        found: dict[tuple[object, ...], list[TimeSample]] = {}
        for one in self.heads:
            setting = one.setting
            at = {"rows": one.rows, "core": setting.core, "scored": setting.scored[0]}
            found.setdefault(time_family(setting), []).append(TimeSample(at, one.bounds, one.count))
        return found

    def _pass(self, times: Sequence[Timed], rows: int) -> Seconds:
        samples = [TimeSample({"rows": one.rows}, one.bounds, one.count) for one in times]
        if not samples:
            raise MismatchError(
                "the times of the larger shape lack its passes",
                remedy="run the stage times again with a longer times.shape_budget_s",
            )
        return interpolate(samples, ("rows",), {"rows": rows}).seconds


def time_family(setting: HeadSetting) -> tuple[object, ...]:
    """What no interpolation crosses: a head's kind, but that slabs of rows are all alike."""
    if setting.kind in SLABS:
        return ("slab",)
    return setting.family


def representatives(settings: Iterable[HeadSetting]) -> list[HeadSetting]:
    """One head of every size that any of these has at any step, sizes of a slab once whatever they are called.

    The whole vocabulary first, then by family and size.
    """
    found: dict[tuple[object, ...], HeadSetting] = {}
    for setting in settings:
        for scored in setting.scored:
            kind = "static" if setting.kind == "scheduled" else setting.kind
            one = setting.model_copy(update={"kind": kind, "scored": (scored,)})
            key = (*time_family(one), one.core, scored)
            if key not in found or kind == "full":
                found[key] = one
    return sorted(
        found.values(),
        key=lambda one: (one.kind != "full", one.kind, one.rank, one.clusters, one.core, one.scored),
    )


def weights_of(setting: HeadSetting, rows: int, hidden: int, *, copies: bool) -> Mapping[str, int]:
    """Bytes of what a head needs beside the LM head, by a name that heads with the same part share.

    Args:
        copies: heads are built on the ops, where a router sorts a copy of the LM head and a hybrid its scorer.
    """
    found: dict[str, int] = {}
    if setting.rank:
        found[f"scorer {setting.rank}"] = 2 * setting.rank * (rows + hidden)
    if setting.core:
        found[f"core {setting.core}"] = 2 * setting.core * hidden
    if setting.kind == "hybrid" and copies:
        found[f"tail {setting.rank} {setting.core}"] = 2 * setting.rank * rows
    if setting.clusters and copies:
        found[f"slabs {setting.clusters}"] = 2 * rows * hidden
    return found
