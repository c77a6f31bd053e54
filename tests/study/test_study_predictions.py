"""Bytes of a draft head, by formula and against the published table; tokens/s from them."""

from __future__ import annotations

import pytest

from vocabforge.study.config import RooflineConfig
from vocabforge.study.report.results import DraftShape
from vocabforge.study.report.roofline import head_bytes, scaled, tokens_per_s
from vocabforge.tune.types import HeadSetting

FULL = HeadSetting(kind="full", scored=(1000,))
ROUTER = HeadSetting(kind="router", scored=(100,), clusters=10)
LARGE = RooflineConfig(hidden=640, rows=2000, bandwidth=1e9, layer_us=100.0, target_us=1000.0)
LLAMA = RooflineConfig(rows=128_256, hidden=4096)


def test_tokens_a_second() -> None:
    moved = head_bytes(HeadSetting(kind="full", scored=(2000,)), LARGE)
    chain = DraftShape(key="chain", nodes=5, levels=4, width=1)
    assert tokens_per_s(2.0, FULL.model_copy(update={"scored": (2000,)}), chain, LARGE) == pytest.approx(
        2.0 / (4 * moved / 1e9 + 4 * 1e-4 + 1e-3)
    )
    router = scaled(ROUTER, LARGE, {}, rows=1000, hidden=64)
    moved = sum(head_bytes(router, LARGE, rows) for rows in (1, 4, 4))
    tree = DraftShape(key="tree 12", nodes=12, levels=3, width=4)
    assert tokens_per_s(2.0, router, tree, LARGE) == pytest.approx(2 / (moved / 1e9 + 1.3e-3))


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
    sizes, row = RooflineConfig(rows=10_000, hidden=64), 128
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
    sizes = RooflineConfig(rows=2000, hidden=512)
    ranker = HeadSetting(kind="ranker", scored=(2048,), rank=256)
    assert scaled(FULL, sizes, {}, rows=1000, hidden=64).scored == (2000,)
    small = scaled(ranker, sizes, {}, rows=1000, hidden=4096)
    assert (small.rank, small.scored) == (32, (2000,))  # no more than there are
    counted = scaled(ROUTER, sizes, {0: 50.0, 1: 60.0, 2: 60.0}, rows=1000, hidden=64)
    assert (counted.scored, counted.clusters) == ((100, 120, 120), 10)
    context = HeadSetting(kind="context", scored=(700,), core=500)
    assert scaled(context, sizes, {0: 520.4}, rows=1000, hidden=64).scored == (520,)
