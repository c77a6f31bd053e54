"""Predicted tokens/s: measured accepted lengths joined with head times, in two columns.

``machine``: this study's models on this machine, from the latency table. ``roofline``: a larger shape (8B models) by
the bytes that each head must move. The accepted lengths are those of this study's small models in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from math import hypot
from typing import NamedTuple

from ...core.errors import MismatchError
from ...evaluate.results.schema import Figure
from ...tune.types import CycleSetting, Seconds, TreeSetting, total
from ..config import TimesConfig
from ..times.roofline import RooflineSizes, head_bytes, scaled
from ..times.stage import StudyTimes
from .results import MACHINE, ROOFLINE, Speed


class _Cycle(NamedTuple):
    """Seconds of a cycle, of its draft head, and of one step of plain decoding."""

    cycle: Seconds
    head: Seconds
    plain: float
    notes: Sequence[str] = ()


def predictions(
    key: str,
    accepted: Figure,
    times: StudyTimes,
    config: TimesConfig,
    *,
    tree: TreeSetting,
    scored: Mapping[int, float] | None = None,
) -> dict[str, Speed]:
    """Predicted speed of a method with a draft shape, by column.

    Args:
        key: ``StudyMethod.key``.
        accepted: tokens that a cycle commits; it has a value.
        tree: the draft shape.
        scored: tokens with an exact logit by draft step, as the replay counted them: for a router and a context head
            they differ from their settings.

    Returns:
        columns whose times were measured.
    """
    found = {}
    for column, make in ((MACHINE, _machine), (ROOFLINE, _roofline)):
        with contextlib.suppress(MismatchError):
            found[column] = _speed(accepted, make(key, times, config, tree, scored))
    return found


def _machine(
    key: str, times: StudyTimes, config: TimesConfig, tree: TreeSetting, scored: Mapping[int, float] | None
) -> _Cycle:
    setting = CycleSetting(head=times.heads[key], tree=tree, batch=1, prefix=times.prefix)
    latency = times.latency
    return _Cycle(
        latency.cycle(setting),
        latency.parts_of(setting)["head"],
        latency.plain(1, times.prefix).value,
        latency.warnings(setting),
    )


def _roofline(
    key: str, times: StudyTimes, config: TimesConfig, tree: TreeSetting, scored: Mapping[int, float] | None
) -> _Cycle:
    """Layer and target as configured, the head by its bytes: the most that its rows may need."""
    sizes = RooflineSizes(config.shape_rows, config.shape_hidden)
    setting = scaled(times.heads[key], times.hidden, sizes, rows=times.rows, scored=scored)
    steps = [head_bytes(setting, sizes, tree.topk if step else 1, step) for step in range(tree.levels)]
    head = total(Seconds(one.most, one.least, one.most) for one in steps).times(1 / config.bandwidth)
    fixed = (config.layer_us * tree.levels + config.target_us) * 1e-6
    return _Cycle(total([head, Seconds(fixed, fixed, fixed)]), head, config.target_us * 1e-6)


def _speed(accepted: Figure, found: _Cycle) -> Speed:
    """Tokens/s; the errors of acceptance and of times are independent."""
    cycle, plain, length = found.cycle, 1 / found.plain, accepted.value
    assert length is not None
    value, least, most = length / cycle.value, accepted.low or length, accepted.high or length
    slow, fast = length / cycle.high, length / max(cycle.low, 1e-12)
    return Speed(
        tokens_per_s=value,
        low=value - hypot((length - least) / cycle.value, value - slow),
        high=value + hypot((most - length) / cycle.value, fast - value),
        plain=plain,
        speedup=value / plain,
        cycle_s=cycle.value,
        head_s=found.head.value,
        notes=list(found.notes),
    )
