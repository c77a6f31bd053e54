"""Logits of opened clusters: reference, CPU implementation and emulated kernels agree with what the router asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, assert_same, moved, parity
from vocabforge.core.errors import UsageError
from vocabforge.ops.cluster_logits import cluster_logits, tiles_bound

INF = float("inf")
# Uneven clusters: empty ones, one row, whole tiles, one more, and one less than a tile.
SIZES = [0, 1, 64, 65, 63, 0, 130, 7, 200, 0]
LARGE = [(place * 97) % 301 for place in range(256)]
BY_NAME = {"uneven": SIZES, "more than threads": [place * 37 % 3 for place in range(2100)], "large": LARGE}


def inputs(
    sizes: Sequence[int], rows: int, width: int, dtype: torch.dtype, *, share: float = 0.4, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden, weight, offsets, opened; numbers whose products are exact, so that sums in any order are."""
    stream = torch.Generator().manual_seed(seed)
    hidden = torch.randint(-4, 5, (rows, width), generator=stream).to(dtype)
    weight = torch.randint(-8, 9, (sum(sizes), width), generator=stream).to(dtype) / 8
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    return hidden, weight, offsets, torch.rand((rows, len(sizes)), generator=stream) < share


def compare(backend: str, given: tuple[Tensor, Tensor, Tensor, Tensor], most_tiles: int) -> None:
    got, expected = (
        cluster_logits(*given, most_tiles=most_tiles, backend=each) for each in (backend, "reference")
    )
    assert_same(got, expected)


def test_known_tiles() -> None:
    hidden, weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.arange(2 * 135.0).view(135, 2)
    offsets = torch.tensor([0, 3, 69, 69, 135], dtype=torch.int32)
    opened = torch.tensor([[True, False, True, False], [False, True, True, False]])
    logits, rows = cluster_logits(hidden, weight, offsets, opened, most_tiles=4)
    none = [-1] * 64
    assert rows.tolist() == [0, 1, 2, *none[3:], *range(3, 67), 67, 68, *none[2:], *none]
    assert logits[0, :4].tolist() == [0.0, 2.0, 4.0, -INF]
    assert logits[1, 64:130].tolist() == [2.0 * row + 1 for row in range(3, 69)]
    assert int(logits.isfinite().sum()) == 3 + 66


@pytest.mark.parametrize("dtype", FLOATS)
def test_reference_holds_exactly_what_each_row_opened(dtype: torch.dtype) -> None:
    hidden, weight, offsets, opened = inputs(SIZES, 6, 24, dtype)
    most = tiles_bound(SIZES, len(SIZES))
    logits, rows = cluster_logits(hidden, weight, offsets, opened, most_tiles=most)
    full = hidden.float() @ weight.float().T  # (N, V')
    cluster = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    found = torch.full_like(full, -INF)
    found[:, rows[rows >= 0].long()] = logits[:, rows >= 0]
    assert torch.equal(found, full.masked_fill(~opened[:, cluster], -INF))
    assert rows[rows >= 0].tolist() == opened.any(0)[cluster].nonzero()[:, 0].tolist()


def test_bound_on_tiles_is_reached_and_never_passed() -> None:
    assert tiles_bound(SIZES, 1) == 4
    assert tiles_bound(SIZES, 3) == 4 + 3 + 2
    assert tiles_bound(SIZES, 99) == sum(-(-size // 64) for size in SIZES)
    opened = torch.zeros(1, len(SIZES), dtype=torch.bool)
    opened[0, [3, 6, 8]] = True
    hidden, weight, offsets, _ = inputs(SIZES, 1, 8, torch.float32)
    _, rows = cluster_logits(hidden, weight, offsets, opened, most_tiles=9)
    assert int((rows[-64:] >= 0).sum()) == 200 - 3 * 64
    for sizes, clusters in ((SIZES, 0), ([0, 0], 2), ([], 1)):
        with pytest.raises(UsageError, match="range"):
            tiles_bound(sizes, clusters)


def test_emulated_kernels_leave_out_what_has_no_room_and_fill_what_is_not_used(
    emulated: Callable[[str], None],
) -> None:
    emulated("cluster_logits")
    hidden, weight, offsets, opened = inputs(SIZES, 3, 32, torch.bfloat16)
    compare("emulated", (hidden, weight, offsets, opened | True), 5)
    compare("emulated", (hidden, weight, offsets, opened & False), 40)


def test_emulated_kernels_take_views(emulated: Callable[[str], None]) -> None:
    emulated("cluster_logits")
    hidden, weight, offsets, opened = inputs(SIZES, 5, 32, torch.float16)
    compare("emulated", (hidden, weight, offsets, opened[:1].expand(5, -1)), 14)
    compare("emulated", (hidden, weight, offsets, torch.cat((opened, opened), 1)[:, : len(SIZES)]), 14)
    compare("emulated", (hidden, weight, offsets, opened.t().contiguous().t()), 14)
    shifted = torch.cat((hidden[0], hidden.flatten()))[1 : 1 + hidden.numel()].view(
        5, 32
    )  # no address of 16 bytes
    compare("emulated", (shifted, weight, offsets, opened), 14)


def test_emulated_kernels_give_the_same_bits_in_any_order_and_company(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inexact sums: a logit depends neither on the schedule nor on other clusters that are open."""
    emulated("cluster_logits")
    stream = torch.Generator().manual_seed(3)
    _, _, offsets, opened = inputs(SIZES, 4, 264, torch.bfloat16)
    hidden = torch.randn(4, 264, generator=stream).bfloat16()
    weight = torch.randn(sum(SIZES), 264, generator=stream).bfloat16()
    found = []
    for seed in (1, 5, 9):
        monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", str(seed))
        opened[:, 8] = seed > 1
        logits, rows = cluster_logits(hidden, weight, offsets, opened, most_tiles=14, backend="emulated")
        every = torch.full((4, sum(SIZES)), -INF)
        every[:, rows[rows >= 0].long()] = logits[:, rows >= 0]
        found.append(every[:, : sum(SIZES[:8])])
        expected, _ = cluster_logits(hidden, weight, offsets, opened, most_tiles=14)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


def agree(
    clusters: str,
    rows: int,
    width: int,
    dtype: torch.dtype,
    share: float,
    spare: int,
    backend: str,
    device: str,
) -> None:
    """``spare``: room for more tiles than are opened, or too little of it."""
    sizes = BY_NAME[clusters]
    given = inputs(sizes, rows, width, dtype, share=share, seed=width)
    compare(backend, tuple(moved(given, device)), tiles_bound(sizes, len(sizes)) + spare)


SHAPES = [(1, 8), (3, 72), (8, 256), (10, 520), (33, 64), (64, 40)]
OPEN = [(0.3, 2), (1.0, 0)]
TestParity = parity(
    "cluster_logits",
    agree,
    emulated=[
        *(("uneven", *shape, dtype, *share) for shape in SHAPES for dtype in HALVES for share in OPEN),
        ("more than threads", 2, 16, torch.bfloat16, 0.02, 0),
    ],
    cpu=[
        ("uneven", *shape, dtype, 0.4, spare)
        for shape in ((1, 5), (7, 24))
        for dtype in FLOATS
        for spare in (3, -8)
    ],
    cuda=[
        ("large", rows, width, dtype, 0.1, 0)
        for rows, width, dtype in product([1, 10, 16, 33, 64], [64, 1000, 4096], HALVES)
    ],
)
