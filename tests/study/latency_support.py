"""A made-up latency table: nothing rests on a clock."""

from __future__ import annotations

from collections.abc import Mapping

from vocabforge.tune.latency.records import AXES, MeasuredPart, Point, Shapes
from vocabforge.tune.latency.table import LatencyTable, head_family
from vocabforge.tune.types import HeadSetting


def part(name: str, family: str, seconds: float, off: float = 0.0) -> MeasuredPart:
    at = dict.fromkeys(AXES[name], 1)
    low, high = seconds * (1 - off), seconds * (1 + off)
    point = Point(at=at, seconds=seconds, low=low, high=high, count=3)
    return MeasuredPart(name=name, family=family, points=(point,))


def made_up_latency(heads: Mapping[HeadSetting, float], off: float = 0.0) -> LatencyTable:
    """A chain of four costs 4 heads, 3 layers, and 10 ms for all else; plain decoding 5 ms a token."""
    parts = [part("plain", "", 5e-3), part("start", "", 0.0)]
    for kind in ("chain", "dynamic"):
        parts += [part("layer", kind, 1e-3), part("verify", kind, 0.01, off)]
        parts += [part(name, kind, 0.0) for name in ("choose", "commit")]
        parts += [part("grow", f"{kind} {place}", 0.0) for place in ("first", "further", "last")]
    families = {head.family: seconds for head, seconds in heads.items()}
    for family, seconds in families.items():
        parts += [part("head", head_family(family, first=first), seconds) for first in (True, False)]
    sizes = Shapes(kind="x", hidden_size=64, vocab_size=1000, layers=2, parameters=1)
    return LatencyTable(
        vocabforge="0",
        environment={},
        dtype="float32",
        graphs=False,
        target=sizes,
        drafter=sizes,
        parts=tuple(parts),
    )
