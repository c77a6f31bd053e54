"""Acceptance joined with head times: predicted tokens a second of every row of the study, in three columns.

``machine``: this study's models on this machine, from the latency table. ``shape``: a larger shape (8B models), with
times measured on this machine. ``roofline``: the same shape by the bytes that each head must move. Accepted lengths are
the same in all three: those of this study's small models, which no time of a larger shape changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import hypot
from typing import NamedTuple

from ..core.errors import MismatchError
from ..tune.types import CycleSetting, Seconds, TreeSetting, total
from .config import TimesConfig
from .roofline import Sizes, head_seconds
from .times import CHAIN as CHAIN
from .times import StudyTimes

MACHINE, SHAPE, ROOFLINE = COLUMNS = "machine", "shape", "roofline"
EVERYTHING = "all"
GREEDY, DRAWN = "greedy", "drawn"


@dataclass(frozen=True)
class Predicted:
    """Predicted speed of decoding, of one request, without the prompt's pass.

    Attributes:
        tokens_per_s: with bounds ``low`` and ``high``: of the accepted length and of the times.
        plain: tokens a second of plain decoding there.
        cycle_s: seconds of a cycle; ``head_s`` those of its draft head.
        notes: what the times rest on beyond what was measured.
    """

    tokens_per_s: float
    low: float
    high: float
    plain: float
    cycle_s: float
    head_s: float
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.tokens_per_s / self.plain


@dataclass(frozen=True)
class Row:
    """One row of the study's table: a way of drafting, a draft shape, a temperature, a group of questions.

    Attributes:
        key: ``Method.key``.
        family, name, setting, dynamic: as in ``study.methods.Method``.
        shape: ``chain``, or ``tree N`` for a fixed tree of N nodes.
        temperature: ``greedy`` or ``drawn`` (temperature 1).
        group: ``all``, a set of questions, or a category.
        accepted: tokens that a cycle commits (one of them the target's own), mean over seeds; ``by_seed`` each
            seed's; ``low`` and ``high`` its 95% interval over questions.
        share: of the full head's accepted length in the same group, shape and temperature, mean over seeds; 1 is all of
            it.
        exact: share of the V logits that are computed exactly, mean over draft steps (the full head: 1).
        scored: mean tokens that get an exact logit, by draft step.
        predicted: by column of ``COLUMNS``; what could not be predicted is not there.
    """

    key: str
    family: str
    name: str
    setting: str
    dynamic: bool
    shape: str
    temperature: str
    group: str
    accepted: float
    share: float
    exact: float
    by_seed: tuple[float | None, ...] = ()
    low: float | None = None
    high: float | None = None
    scored: tuple[float, ...] = ()
    predicted: Mapping[str, Predicted] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """For tables: name and setting."""
        return f"{self.name}, {self.setting}"

    def tokens_per_s(self, column: str) -> float | None:
        """Predicted tokens a second of a column."""
        found = self.predicted.get(column)
        return None if found is None else found.tokens_per_s


class Length(NamedTuple):
    """An accepted length with its interval."""

    value: float
    low: float
    high: float


def predictions(
    key: str,
    accepted: Length,
    times: StudyTimes,
    config: TimesConfig,
    *,
    tree: TreeSetting,
    scored: Mapping[int, float] | None = None,
) -> dict[str, Predicted]:
    """Predicted tokens a second of a method with a draft shape, by column.

    Args:
        key: ``Method.key``.
        accepted: tokens that a cycle commits, for all columns.
        tree: the shape; ``times.trees`` names those that were measured.
        scored: tokens that got an exact logit in a row by draft step, as the replay counted them: of a router and of a
            context head they differ from what their settings say.

    Returns:
        columns without what was never measured.
    """
    found = {}
    for column, make in ((MACHINE, _machine), (SHAPE, _shape), (ROOFLINE, _roofline)):
        try:
            cycle = make(key, times, config, tree, scored)
        except MismatchError:
            continue
        if cycle is not None:
            found[column] = _predicted(accepted, cycle)
    return found


def with_predictions(
    row: Row, times: StudyTimes, config: TimesConfig, tree: TreeSetting | None = None
) -> Row:
    """The row with its predictions; as it is where its shape is not known.

    Args:
        tree: its shape; None: the one of that name in ``times.trees``.
    """
    tree = tree or times.trees.get(row.shape)
    if tree is None or row.key not in times.heads:
        return row
    low = row.accepted if row.low is None else row.low
    high = row.accepted if row.high is None else row.high
    scored = {step: size for step, size in enumerate(row.scored) if size == size}  # NaN: nothing was asked
    found = predictions(row.key, Length(row.accepted, low, high), times, config, tree=tree, scored=scored)
    return replace(row, predicted=found)


class _Cycle(NamedTuple):
    """Seconds of a cycle and of its draft head, and of one step of plain decoding."""

    cycle: Seconds
    head: Seconds
    plain: float
    notes: tuple[str, ...] = ()


def _machine(
    key: str, times: StudyTimes, config: TimesConfig, tree: TreeSetting, scored: Mapping[int, float] | None
) -> _Cycle:
    setting = CycleSetting(head=times.heads[key], tree=tree, batch=1, prefix=times.prefix)
    latency = times.latency
    return _Cycle(
        latency.cycle(setting),
        latency.parts_of(setting)["head"],
        latency.plain(1, times.prefix).value,
        tuple(latency.warnings(setting)),
    )


def _shape(
    key: str, times: StudyTimes, config: TimesConfig, tree: TreeSetting, scored: Mapping[int, float] | None
) -> _Cycle | None:
    shape = times.shape
    if shape is None:
        return None
    # A context head reads room for its whole text, however short that is: only a router's work is what was counted.
    counted = scored if times.heads[key].kind == "router" else None
    head = times.large(key, Sizes(shape.rows, shape.hidden), counted)
    cycle = shape.cycle(head, tree)
    return _Cycle(cycle.seconds, cycle.head, shape.plain().value, cycle.notes)


def _roofline(
    key: str, times: StudyTimes, config: TimesConfig, tree: TreeSetting, scored: Mapping[int, float] | None
) -> _Cycle:
    """Layer and target as the configuration says them, the head by its bytes: the most that rows may need of them."""
    sizes = Sizes(config.shape_rows, config.shape_hidden, config.bandwidth)
    setting = times.large(key, sizes, scored)
    steps = [head_seconds(setting, sizes, tree.topk if step else 1, step) for step in range(tree.levels)]
    head = total(Seconds(one.most, one.least, one.most) for one in steps)
    fixed = (config.layer_us * tree.levels + config.target_us) * 1e-6
    return _Cycle(total([head, Seconds(fixed, fixed, fixed)]), head, config.target_us * 1e-6)


def _predicted(accepted: Length, found: _Cycle) -> Predicted:
    """Tokens a second; the errors of acceptance and of times have nothing to do with each other."""
    cycle = found.cycle
    value = accepted.value / cycle.value
    slow, fast = accepted.value / cycle.high, accepted.value / max(cycle.low, 1e-12)
    return Predicted(
        tokens_per_s=value,
        low=value - hypot((accepted.value - accepted.low) / cycle.value, value - slow),
        high=value + hypot((accepted.high - accepted.value) / cycle.value, fast - value),
        plain=1 / found.plain,
        cycle_s=cycle.value,
        head_s=found.head.value,
        notes=found.notes,
    )
