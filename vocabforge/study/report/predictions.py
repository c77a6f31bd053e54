"""Predicted tokens/s: measured accepted lengths joined with head times, in two columns.

``machine``: this study's models on this machine, from the latency table. ``roofline``: a larger shape (8B models) by
the bytes that each head must move. The accepted lengths are those of this study's small models in both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from math import hypot

from ...core.errors import MismatchError
from ...evaluate.results.schema import Figure
from ...tune.types import CycleSetting, Seconds, TreeSetting
from ..config import TimesConfig
from ..times.roofline import RooflineSizes, head_bytes, scaled
from ..times.stage import StudyTimes
from .results import MACHINE, ROOFLINE, Speed


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
    with contextlib.suppress(MismatchError):
        setting = CycleSetting(head=times.heads[key], tree=tree, batch=1, prefix=times.prefix)
        plain = times.latency.plain(1, times.prefix).value
        found[MACHINE] = _speed(accepted, times.latency.cycle(setting), plain)
    sizes = RooflineSizes(config.shape_rows, config.shape_hidden)
    head = scaled(times.heads[key], times.hidden, sizes, rows=times.rows, scored=scored)
    moved = sum(head_bytes(head, sizes, tree.topk if step else 1, step) for step in range(tree.levels))
    target = config.target_us * 1e-6
    cycle = moved / config.bandwidth + config.layer_us * tree.levels * 1e-6 + target
    found[ROOFLINE] = _speed(accepted, Seconds(cycle, cycle, cycle), target)
    return found


def _speed(accepted: Figure, cycle: Seconds, plain: float) -> Speed:
    """Tokens/s; the errors of acceptance and of times are independent."""
    length = accepted.value
    assert length is not None
    value, least, most = length / cycle.value, accepted.low or length, accepted.high or length
    slow, fast = length / cycle.high, length / max(cycle.low, 1e-12)
    return Speed(
        tokens_per_s=value,
        low=value - hypot((length - least) / cycle.value, value - slow),
        high=value + hypot((most - length) / cycle.value, fast - value),
        speedup=value * plain,
    )
