"""Accepted lengths joined with times, and bytes of a draft head, by formula and against the published table."""

from __future__ import annotations

from math import hypot

import pytest

from tests.study.latency_support import made_up_latency
from vocabforge.evaluate.results.schema import Figure
from vocabforge.study.config import TimesConfig
from vocabforge.study.report.predictions import predictions
from vocabforge.study.report.results import MACHINE, ROOFLINE, Speed
from vocabforge.study.times.roofline import RooflineSizes, head_bytes, scaled
from vocabforge.study.times.stage import StudyTimes
from vocabforge.tune.types import HeadSetting, TreeSetting

FULL = HeadSetting(kind="full", scored=(1000,))
STATIC = HeadSetting(kind="static", scored=(200,))
ROUTER = HeadSetting(kind="router", scored=(100,), clusters=10, shared=True)
CHAIN, TREE = TreeSetting.chain(3), TreeSetting(topk=4, depth=2, total=12)
CONFIG = TimesConfig(shape_hidden=640, shape_rows=2000, bandwidth=1e9, layer_us=100.0, target_us=1000.0)
LARGE = RooflineSizes(2000, 640)


def predict(key: str, length: Figure | float, off: float = 0.0, **more: object) -> dict[str, Speed]:
    times = StudyTimes(
        vocabforge="0",
        heads={"full": FULL, "static": STATIC, "router": ROUTER},
        rows=1000,
        hidden=64,
        prefix=40,
        trees={"chain": CHAIN, "tree 12": TREE},
        latency=made_up_latency({FULL: 4e-3, STATIC: 1e-3}, off),
    )
    accepted = length if isinstance(length, Figure) else Figure(value=length)
    return predictions(key, accepted, times, CONFIG, **{"tree": CHAIN, **more})  # type: ignore[arg-type]


def test_this_machine() -> None:
    found = predict("full", 3.0)[MACHINE]
    assert found.tokens_per_s == pytest.approx(3.0 / (4 * 4e-3 + 3 * 1e-3 + 0.01))
    assert found.speedup == pytest.approx(3.0 / 0.029 / 200.0)
    assert found.low == pytest.approx(found.tokens_per_s) == found.high
    assert set(predict("router", 2.0)) == {ROOFLINE}  # what was not measured is left out


def test_the_roofline() -> None:
    moved = head_bytes(HeadSetting(kind="full", scored=(2000,)), LARGE)
    found = predict("full", 2.0)[ROOFLINE]
    assert found.tokens_per_s == pytest.approx(2.0 / (4 * moved / 1e9 + 4 * 1e-4 + 1e-3))
    assert found.speedup == pytest.approx(found.tokens_per_s / 1000)
    router = scaled(ROUTER, 64, LARGE, rows=1000)
    moved = sum(head_bytes(router, LARGE, rows) for rows in (1, 4, 4))
    assert predict("router", 2.0, tree=TREE)[ROOFLINE].tokens_per_s == pytest.approx(
        2 / (moved / 1e9 + 1.3e-3)
    )
    # 100 of 1,000 tokens by its budget, 150 as counted: 200 and 300 of 2,000
    seconds = [2.0 / predict("router", 2.0, scored=by)[ROOFLINE].tokens_per_s for by in ({0: 150.0}, {})]
    assert seconds[0] - seconds[1] == pytest.approx(4 * 100 * (1280 + 4) / 1e9)


def test_errors_are_joined() -> None:
    found = predict("full", Figure(value=3.0, low=2.7, high=3.6), off=0.29)[MACHINE]
    value, slow, fast = 3.0 / 0.029, 3.0 / 0.0319, 3.0 / 0.0261
    assert found.low == pytest.approx(value - hypot(0.3 / 0.029, value - slow))
    assert found.high == pytest.approx(value + hypot(0.6 / 0.029, fast - value))


LLAMA = RooflineSizes(rows=128_256, hidden=4096)


@pytest.mark.parametrize(
    ("head", "mb", "mb10"),
    [
        (HeadSetting(kind="full", scored=(128_256,)), "1051", "1056"),
        (HeadSetting(kind="static", scored=(32_768,)), "269", "270"),
        (HeadSetting(kind="ranker", scored=(2048,), rank=256), "85", "241"),
    ],
)
def test_the_published_table(head: HeadSetting, mb: str, mb10: str) -> None:
    """MB with 1 row and with 10 rows, as printed in PEERS.md."""
    assert [f"{head_bytes(head, LLAMA, rows) / 1e6:.0f}" for rows in (1, 10)] == [mb, mb10]


def test_other_heads() -> None:
    sizes, row = RooflineSizes(rows=10_000, hidden=64), 128
    scorer = 2 * 8 * (10_000 + 64) + 3 * (4 * 10_000 + row)
    assert head_bytes(HeadSetting(kind="low-rank", scored=(10_000,), rank=8), sizes, 3) == scorer
    context = HeadSetting(kind="context", scored=(700,), core=500)
    assert head_bytes(context, sizes, 3) == 3 * row + 700 * row + 3 * 4 * 700
    hybrid = HeadSetting(kind="hybrid", scored=(600,), core=500, rank=8)
    assert head_bytes(hybrid, sizes, 3) == scorer + (500 + 3 * 100) * row + 3 * 4 * 600
    falling = HeadSetting(kind="scheduled", scored=(800, 800, 400))
    of = [head_bytes(falling, sizes, 1, step) for step in range(5)]
    assert of[0] == of[1] > of[2] == of[3] == of[4] == row + 400 * (row + 4)


def test_heads_at_another_shape() -> None:
    sizes = RooflineSizes(rows=2000, hidden=512)
    ranker = HeadSetting(kind="ranker", scored=(2048,), rank=256)
    assert scaled(FULL, 64, sizes, rows=1000).scored == (2000,)
    assert scaled(ranker, 4096, sizes, rows=1000).rank == 32
    assert scaled(ranker, 4096, sizes, rows=1000).scored == (2000,)  # no more than there are
    counted = scaled(ROUTER, 64, sizes, rows=1000, scored={0: 50.0, 1: 60.0, 2: 60.0})
    assert (counted.scored, counted.clusters) == ((100, 120, 120), 10)
    context = HeadSetting(kind="context", scored=(700,), core=500)
    assert scaled(context, 64, sizes, rows=1000, scored={0: 520.4}).scored == (520,)
