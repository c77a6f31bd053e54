"""Accepted lengths joined with times, by formula, and what ``tune`` makes of the rows."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, nan

import pytest

from tests.study.times_support import row, speed
from vocabforge.decode.recipe import PLAIN
from vocabforge.study.config import TimesConfig
from vocabforge.study.joined import COLUMNS, MACHINE, ROOFLINE, SHAPE, Length, predictions, with_predictions
from vocabforge.study.roofline import Sizes, head_bytes
from vocabforge.study.shape_times import HeadTime, ShapeTimes, Timed
from vocabforge.study.times import StudyTimes
from vocabforge.study.tuning import SHARE, places_of, tuned
from vocabforge.tune.records import AXES, MeasuredPart, Point, Shapes
from vocabforge.tune.table import LatencyTable, head_family
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


def times(off: float = 0.0, *, shape: bool = True) -> StudyTimes:
    def timed(rows: int, seconds: float) -> Timed:
        return Timed(rows=rows, seconds=seconds, low=seconds, high=seconds, count=3)

    def head(setting: HeadSetting, seconds: float) -> HeadTime:
        return HeadTime(setting=setting, **timed(1, seconds).model_dump())

    large = ShapeTimes(
        hidden=640,
        rows=2000,
        layers=10,
        prefix=5,
        dtype="bfloat16",
        environment={},
        heads=(
            head(FULL.model_copy(update={"scored": (2000,)}), 2e-3),
            head(STATIC, 5e-4),
            head(ROUTER.model_copy(update={"scored": (200,)}), 4e-4),
            head(ROUTER.model_copy(update={"scored": (400,)}), 8e-4),
        ),
        drafter=(timed(1, 1e-4),),
        target=(timed(1, 1e-3),),
        logits=(timed(1, 2e-3),),
        fuse=(timed(1, 1e-5),),
    )
    return StudyTimes(
        vocabforge="0",
        heads={"full": FULL, "static": STATIC, "router": ROUTER},
        rows=1000,
        hidden=64,
        prefix=40,
        trees={"chain": CHAIN, "tree 12": TREE},
        latency=table(off),
        shape=large if shape else None,
    )


def exactly(value: float) -> Length:
    return Length(value, value, value)


class TestPredictions:
    def test_this_machine(self) -> None:
        found = predictions("full", exactly(3.0), times(), CONFIG, tree=CHAIN)[MACHINE]
        assert found.cycle_s == pytest.approx(4 * 4e-3 + 3 * 1e-3 + 0.01)
        assert found.head_s == pytest.approx(4 * 4e-3)
        assert found.tokens_per_s == pytest.approx(3.0 / 0.029)
        assert found.plain == pytest.approx(200.0)
        assert found.speedup == pytest.approx(3.0 / 0.029 / 200.0)
        assert found.low == pytest.approx(found.tokens_per_s) == found.high

    def test_the_larger_shape(self) -> None:
        found = predictions("static", exactly(2.0), times(), CONFIG, tree=CHAIN)[SHAPE]
        target = 10 * 1e-3 + 2e-3
        assert found.head_s == pytest.approx(4 * 5e-4)
        assert found.cycle_s == pytest.approx(4 * 5e-4 + 4 * 1e-4 + 1e-5 + target)
        assert found.plain == pytest.approx(1 / target)

    def test_the_roofline(self) -> None:
        found = predictions("full", exactly(2.0), times(), CONFIG, tree=CHAIN)[ROOFLINE]
        moved = head_bytes(HeadSetting(kind="full", scored=(2000,)), Sizes(2000, 640)).most
        assert found.head_s == pytest.approx(4 * moved / 1e9)
        assert found.cycle_s == pytest.approx(4 * moved / 1e9 + 4 * 1e-4 + 1e-3)
        assert found.plain == pytest.approx(1000.0)

    def test_rows_of_a_tree_share_or_do_not(self) -> None:
        found = predictions("router", exactly(2.0), times(), CONFIG, tree=TREE)[ROOFLINE]
        large, sizes = times().large("router", Sizes(2000, 640)), Sizes(2000, 640)
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
        assert nominal[SHAPE].head_s == pytest.approx(4 * 4e-4)
        assert counted[SHAPE].head_s == pytest.approx(4 * 6e-4)
        assert counted[ROOFLINE].head_s - nominal[ROOFLINE].head_s == pytest.approx(
            4 * 100 * (1280 + 4) / 1e9
        )

    def test_what_was_not_measured_is_left_out(self) -> None:
        assert set(predictions("router", exactly(2.0), times(), CONFIG, tree=CHAIN)) == {SHAPE, ROOFLINE}
        assert set(predictions("full", exactly(2.0), times(shape=False), CONFIG, tree=CHAIN)) == {
            MACHINE,
            ROOFLINE,
        }

    def test_errors_are_joined(self) -> None:
        found = predictions("full", Length(3.0, 2.7, 3.6), times(off=0.29), CONFIG, tree=CHAIN)[MACHINE]
        value = 3.0 / 0.029
        slow, fast = 3.0 / 0.0319, 3.0 / 0.0261
        assert found.low == pytest.approx(value - hypot(0.3 / 0.029, value - slow))
        assert found.high == pytest.approx(value + hypot(0.6 / 0.029, fast - value))

    def test_a_row(self) -> None:
        one = row("fr", "FR-Spec", "R = 200", 2.5, 0.2, key="static", shape="chain", scored=(200.0, nan))
        joined = with_predictions(one, times(), CONFIG)
        assert set(joined.predicted) == set(COLUMNS)
        assert joined.tokens_per_s(MACHINE) == pytest.approx(2.5 / (4e-3 + 3e-3 + 0.01))
        assert replace(joined, predicted={}) == one
        assert one.tokens_per_s(MACHINE) is None
        unknown = replace(one, shape="tree 99")
        assert with_predictions(unknown, times(), CONFIG) == unknown
        assert set(with_predictions(unknown, times(), CONFIG, TREE).predicted) == set(COLUMNS)
        assert with_predictions(replace(one, key="other"), times(), CONFIG).predicted == {}


def speeds(machine: float, shape: float) -> dict:
    return {MACHINE: speed(machine), SHAPE: speed(shape)}


def rows() -> list:
    """Static is the fastest here, the router at the larger shape; the full head accepts most."""
    return [
        row("full", "full", "all", 5.0, 1.0, key="full", shape="chain", predicted=speeds(120.0, 100.0)),
        row(
            "fr", "FR-Spec", "R = 200", 4.0, 0.2, key="static", shape="chain", predicted=speeds(300.0, 130.0)
        ),
        row(
            "trim",
            "VocabTrim",
            "R = 200",
            4.1,
            0.2,
            key="static",
            shape="tree 12",
            predicted=speeds(290.0, 120.0),
        ),
        row("router", "router", "1", 4.9, 0.1, key="router", shape="chain", predicted=speeds(200.0, 150.0)),
        row(
            "router",
            "router",
            "1",
            4.9,
            0.1,
            key="router",
            shape="chain",
            group="spec",
            predicted=speeds(999.0, 1.0),
        ),
        row("router", "router", "1", 4.9, 0.1, key="router", shape="tree 12"),
    ]


class TestTuned:
    def test_the_fastest_here(self) -> None:
        found = tuned(rows(), times().trees)
        assert found is not None
        assert found.pick == rows()[1]
        assert found.recommendation.method == "static+chain4"
        assert found.recommendation.speedup == pytest.approx(3.0)
        assert [one.tokens_per_s(MACHINE) for one in found.order] == [300.0, 290.0, 200.0, 120.0]
        assert found.places == {MACHINE: 1, SHAPE: 2, SHARE: 3}
        names = {one.name: one for one in found.recommendation.runner_ups}
        assert names["static+tree3x4x12"].tokens_per_s == pytest.approx(290 / 300 - 1)
        assert not names["static+tree3x4x12"].sure  # their intervals overlap
        assert names[PLAIN].sure

    def test_another_column(self) -> None:
        found = tuned(rows(), times().trees, column=SHAPE)
        assert found is not None
        assert found.pick == rows()[3]

    def test_plain_decoding(self) -> None:
        slow = [replace(one, predicted={MACHINE: speed(90.0)}) for one in rows()[:2]]
        found = tuned(slow, times().trees)
        assert found is not None
        assert (found.pick, found.recommendation.method, found.places) == (None, PLAIN, {})

    def test_nothing_to_rank(self) -> None:
        assert tuned(rows(), times().trees, column=ROOFLINE) is None
        assert tuned(rows(), times().trees, temperature="drawn") is None

    def test_places(self) -> None:
        assert places_of(rows()[0], rows()[:4]) == {MACHINE: 4, SHAPE: 4, SHARE: 1}
