"""Accepted lengths joined with times, by formula."""

from __future__ import annotations

from math import hypot

import pytest

from vocabforge.evaluate.results.schema import Figure
from vocabforge.study.config import TimesConfig
from vocabforge.study.report.predictions import predictions
from vocabforge.study.report.results import MACHINE, ROOFLINE
from vocabforge.study.times.roofline import RooflineSizes, head_bytes, scaled
from vocabforge.study.times.stage import StudyTimes
from vocabforge.tune.latency.records import AXES, MeasuredPart, Point, Shapes
from vocabforge.tune.latency.table import LatencyTable, head_family
from vocabforge.tune.types import HeadSetting, TreeSetting

FULL = HeadSetting(kind="full", scored=(1000,))
STATIC = HeadSetting(kind="static", scored=(200,))
ROUTER = HeadSetting(kind="router", scored=(100,), clusters=10, shared=True)
CHAIN, TREE = TreeSetting.chain(3), TreeSetting(topk=4, depth=2, total=12)
CONFIG = TimesConfig(shape_hidden=640, shape_rows=2000, bandwidth=1e9, layer_us=100.0, target_us=1000.0)


def part(name: str, family: str, seconds: float, off: float = 0.0) -> MeasuredPart:
    at = dict.fromkeys(AXES[name], 1)
    low, high = seconds * (1 - off), seconds * (1 + off)
    return MeasuredPart(
        name=name, family=family, points=(Point(at=at, seconds=seconds, low=low, high=high, count=3),)
    )


def table(off: float = 0.0) -> LatencyTable:
    """A chain of four costs 4 heads, 3 layers, and 10 ms for all else; plain decoding 5 ms a token."""
    parts = [part("plain", "", 5e-3), part("start", "", 0.0)]
    for kind in ("chain", "dynamic"):
        parts += [part("layer", kind, 1e-3), part("verify", kind, 0.01, off)]
        parts += [part(name, kind, 0.0) for name in ("choose", "commit")]
        parts += [part("grow", f"{kind} {place}", 0.0) for place in ("first", "further", "last")]
    for head, seconds in ((FULL, 4e-3), (STATIC, 1e-3)):
        parts += [part("head", head_family(head.family, first=first), seconds) for first in (True, False)]
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


def times(off: float = 0.0) -> StudyTimes:
    return StudyTimes(
        vocabforge="0",
        heads={"full": FULL, "static": STATIC, "router": ROUTER},
        rows=1000,
        hidden=64,
        prefix=40,
        trees={"chain": CHAIN, "tree 12": TREE},
        latency=table(off),
    )


def exactly(value: float) -> Figure:
    return Figure(value=value)


class TestPredictions:
    def test_this_machine(self) -> None:
        found = predictions("full", exactly(3.0), times(), CONFIG, tree=CHAIN)[MACHINE]
        assert found.cycle_s == pytest.approx(4 * 4e-3 + 3 * 1e-3 + 0.01)
        assert found.head_s == pytest.approx(4 * 4e-3)
        assert found.tokens_per_s == pytest.approx(3.0 / 0.029)
        assert found.plain == pytest.approx(200.0)
        assert found.speedup == pytest.approx(3.0 / 0.029 / 200.0)
        assert found.low == pytest.approx(found.tokens_per_s) == found.high

    def test_the_roofline(self) -> None:
        found = predictions("full", exactly(2.0), times(), CONFIG, tree=CHAIN)[ROOFLINE]
        moved = head_bytes(HeadSetting(kind="full", scored=(2000,)), RooflineSizes(2000, 640)).most
        assert found.head_s == pytest.approx(4 * moved / 1e9)
        assert found.cycle_s == pytest.approx(4 * moved / 1e9 + 4 * 1e-4 + 1e-3)
        assert found.plain == pytest.approx(1000.0)

    def test_rows_of_a_tree_share_or_do_not(self) -> None:
        found = predictions("router", exactly(2.0), times(), CONFIG, tree=TREE)[ROOFLINE]
        sizes = RooflineSizes(2000, 640)
        large = scaled(ROUTER, 64, sizes, rows=1000)
        steps = [head_bytes(large, sizes, rows) for rows in (1, 4, 4)]
        fixed = 3e-4 + 1e-3
        assert found.low == pytest.approx(found.tokens_per_s)
        assert found.cycle_s == pytest.approx(fixed + sum(one.most for one in steps) / 1e9)
        assert found.high == pytest.approx(2.0 / (fixed + sum(one.least for one in steps) / 1e9))

    def test_what_a_router_opened_counts(self) -> None:
        """100 of 1,000 tokens by its budget, 150 as counted: 200 and 300 of 2,000."""
        asked = times()
        nominal = predictions("router", exactly(2.0), asked, CONFIG, tree=CHAIN)
        counted = predictions("router", exactly(2.0), asked, CONFIG, tree=CHAIN, scored={0: 150.0})
        assert counted[ROOFLINE].head_s - nominal[ROOFLINE].head_s == pytest.approx(
            4 * 100 * (1280 + 4) / 1e9
        )

    def test_what_was_not_measured_is_left_out(self) -> None:
        assert set(predictions("router", exactly(2.0), times(), CONFIG, tree=CHAIN)) == {ROOFLINE}
        assert set(predictions("full", exactly(2.0), times(), CONFIG, tree=CHAIN)) == {MACHINE, ROOFLINE}

    def test_errors_are_joined(self) -> None:
        found = predictions(
            "full", Figure(value=3.0, low=2.7, high=3.6), times(off=0.29), CONFIG, tree=CHAIN
        )[MACHINE]
        value = 3.0 / 0.029
        slow, fast = 3.0 / 0.0319, 3.0 / 0.0261
        assert found.low == pytest.approx(value - hypot(0.3 / 0.029, value - slow))
        assert found.high == pytest.approx(value + hypot(0.6 / 0.029, fast - value))
