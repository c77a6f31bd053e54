"""Bytes of a draft head, held against the published table (PEERS.md) figure by figure."""

from __future__ import annotations

import pytest

from vocabforge.study.times.roofline import RooflineSizes, head_bytes, scaled
from vocabforge.tune.types import HeadSetting

LLAMA = RooflineSizes(rows=128_256, hidden=4096)
FULL = HeadSetting(kind="full", scored=(128_256,))
STATIC = HeadSetting(kind="static", scored=(32_768,))
RANKER = HeadSetting(kind="ranker", scored=(2048,), rank=256)
ROUTER = HeadSetting(kind="router", scored=(27_344,), clusters=1024, shared=True)

# head, which of its bounds, then MB and microseconds with 1 row and with 10 rows, as printed there
PUBLISHED = [
    (FULL, "most", "1051", "244", "1056", "246"),
    (STATIC, "most", "269", "62.5", "270", "62.8"),
    (RANKER, "most", "85", "19.8", "241", "56.0"),
    (RANKER, "least", "85", "19.8", "90", "20.9"),
    (ROUTER, "least", "224", "52.1", "225", "52.4"),
]


@pytest.mark.parametrize(("head", "bound", "mb", "us", "mb10", "us10"), PUBLISHED)
def test_the_published_table(head: HeadSetting, bound: str, mb: str, us: str, mb10: str, us10: str) -> None:
    for rows, megabytes, microseconds in ((1, mb, us), (10, mb10, us10)):
        megabytes_moved = getattr(head_bytes(head, LLAMA, rows, with_mlp=False), bound) / 1e6
        spent = megabytes_moved / 4.3
        assert f"{megabytes_moved:.0f}" == megabytes
        assert f"{spent:.{len(microseconds.partition('.')[2])}f}" == microseconds


def test_a_router_also_reads_its_mlp() -> None:
    plain = head_bytes(ROUTER, LLAMA, 1, with_mlp=False).most
    assert head_bytes(ROUTER, LLAMA, 1).most - plain == 2 * 1024 * (2 * 4096 + 1024)


def test_other_heads() -> None:
    sizes, row = RooflineSizes(rows=10_000, hidden=64), 128
    low_rank = HeadSetting(kind="low-rank", scored=(10_000,), rank=8)
    scorer = 2 * 8 * (10_000 + 64) + 3 * (4 * 10_000 + row)
    assert head_bytes(low_rank, sizes, 3).most == scorer
    context = HeadSetting(kind="context", scored=(700,), core=500)
    assert head_bytes(context, sizes, 3).most == 3 * row + 700 * row + 3 * 4 * 700
    assert head_bytes(context, sizes, 3).least == head_bytes(context, sizes, 3).most
    hybrid = HeadSetting(kind="hybrid", scored=(600,), core=500, rank=8)
    assert head_bytes(hybrid, sizes, 3).least == scorer + 600 * row + 3 * 4 * 600
    assert head_bytes(hybrid, sizes, 3).most == scorer + (500 + 3 * 100) * row + 3 * 4 * 600
    falling = HeadSetting(kind="scheduled", scored=(800, 800, 400))
    of = [head_bytes(falling, sizes, 1, step).most for step in range(5)]
    assert of[0] == of[1] > of[2] == of[3] == of[4] == row + 400 * (row + 4)


def test_heads_at_another_shape() -> None:
    sizes = RooflineSizes(rows=2000, hidden=512)
    assert scaled(FULL, 64, sizes, rows=1000).scored == (2000,)
    assert scaled(RANKER, 4096, sizes, rows=1000).rank == 32
    assert scaled(RANKER, 4096, sizes, rows=1000).scored == (2000,)  # no more than there are
    router = HeadSetting(kind="router", scored=(100,), clusters=16, shared=True)
    assert scaled(router, 64, sizes, rows=1000).scored == (200,)
    counted = scaled(router, 64, sizes, rows=1000, scored={0: 50.0, 1: 60.0, 2: 60.0})
    assert counted.scored == (100, 120, 120)
    assert counted.clusters == 16
    context = HeadSetting(kind="context", scored=(700,), core=500)
    assert scaled(context, 64, sizes, rows=1000, scored={0: 520.4}).scored == (520,)
    assert scaled(context, 64, sizes, rows=1000).core == 500
