"""What stands above a token and where shortlists end, on the host and as on a device, against sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vocabforge.evaluate import replay_above
from vocabforge.evaluate.replay_above import Shortlist, above, borders

ROWS, SIZE = 9, 700


def scores_of(kind: str, seed: int = 0) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.randn(ROWS, SIZE, generator=stream)
    return {"real": drawn, "ties": (drawn * 2).round(), "equal": torch.zeros(ROWS, SIZE)}[kind]


def ordered(row: torch.Tensor) -> list[int]:
    """Head rows, best first, ties to the lower one, in plain Python."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


WAYS = ["host", "device"]
kinds = pytest.mark.parametrize("kind", ["real", "ties", "equal"])
ways = pytest.mark.parametrize("way", WAYS)


@kinds
@ways
def test_above_is_what_sorting_puts_before(kind: str, way: str) -> None:
    scores = scores_of(kind)
    wanted = torch.tensor([0, SIZE - 1, 5, -1, 300, 17, -1, 640, 2])
    pairs = {"host": above, "device": replay_above._above_on_device}[way](scores, wanted)
    member = pairs.columns % 3 == 0
    for row, place in enumerate(wanted.tolist()):
        order = ordered(scores[row])
        expected = set(order[: order.index(place)]) if place >= 0 else set()
        assert set(pairs.columns[pairs.rows == row].tolist()) == expected
        assert int(pairs.count()[row]) == len(expected)
        assert int(pairs.count(member)[row]) == sum(one % 3 == 0 for one in expected)
    assert bool((pairs.rows.diff() >= 0).all())


def test_nothing_above_nothing() -> None:
    pairs = above(scores_of("real"), torch.full((ROWS,), -1))
    assert len(pairs.rows) == len(pairs.columns) == 0
    assert pairs.count(torch.zeros(0, dtype=torch.bool)).tolist() == [0] * ROWS


@kinds
@ways
@pytest.mark.parametrize("sample", [8, 4096])
def test_borders_hold_exactly_the_best(kind: str, way: str, sample: int, monkeypatch) -> None:
    """Several sizes at once, some of them outside of head rows that are left out; the sample may be far too small."""
    monkeypatch.setattr(replay_above, "_SAMPLE", sample)
    scores = scores_of(kind, seed=1)
    some = torch.zeros(SIZE, dtype=torch.bool)
    some[::5] = True
    few = torch.zeros(SIZE, dtype=torch.bool)
    few[:3] = True
    lists = [Shortlist(1), Shortlist(40), Shortlist(10, some), Shortlist(41), Shortlist(25, few)]
    if sample == 4096:
        lists += [Shortlist(SIZE), Shortlist(SIZE - 3, few)]
    else:
        # Without all that would be looked at first.
        best = torch.zeros(SIZE, dtype=torch.bool)
        best[scores[0].topk(SIZE // 2).indices] = True
        lists.append(Shortlist(30, best))
    found = {"host": borders, "device": replay_above._borders_on_device}[way](scores, lists)
    columns = torch.arange(SIZE)
    for one, border in zip(lists, found, strict=True):
        left = [True] * SIZE if one.without is None else (~one.without).tolist()
        for row in range(ROWS):
            expected = {*[i for i in ordered(scores[row]) if left[i]][: one.size]}
            inside = border.holds(scores[row], columns, torch.full((SIZE,), row))
            assert {i for i in columns[inside].tolist() if left[i]} == expected
        one_each = torch.arange(ROWS) * 7
        alone = border.holds(scores[torch.arange(ROWS), one_each], one_each)
        paired = border.holds(scores[torch.arange(ROWS), one_each], one_each, torch.arange(ROWS))
        assert torch.equal(alone, paired)


def test_a_pivot_keeps_little_of_a_long_row_and_never_too_little() -> None:
    row = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    for most in (1, 128, 4096):
        pool = replay_above._pool(row, most)
        assert set(np.argpartition(-row, most)[:most].tolist()) <= set(pool.tolist())
        assert len(pool) < 8000
    adverse = np.zeros(150_000, np.float32)
    adverse[::36] = 1.0  # the sample sees nothing else, and takes them for the rule
    assert len(replay_above._pool(adverse, 100_000)) == len(adverse)
