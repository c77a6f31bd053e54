"""What stands above a token, and what of a shortlist does a token, on the host and as on a device, against sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.study.replay_scores import ROWS, SIZE, kinds, ordered, scores_of, ways
from vocabforge.study.replay import lists as replay_lists
from vocabforge.study.replay.lists import Shortlist, above, on_lists

WIDTH = 4


@kinds
@ways
def test_above_is_what_sorting_puts_before(kind: str, way: str) -> None:
    scores = scores_of(kind)
    wanted = torch.tensor([0, SIZE - 1, 5, -1, 300, 17, -1, 640, 2])
    pairs = {"host": above, "device": replay_lists._above_on_device}[way](scores, wanted)
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
@pytest.mark.parametrize("exact", ["real", "ties"])
def test_lists_hold_exactly_the_best(kind: str, way: str, sample: int, exact: str, monkeypatch) -> None:
    """Several sizes at once, some without head rows that are left out; the sample may be far too small."""
    monkeypatch.setattr(replay_lists, "_SAMPLE", sample)
    scores, logits = scores_of(kind, seed=1), scores_of(exact, seed=2)
    some = torch.zeros(SIZE, dtype=torch.bool)
    some[::5] = True
    best = torch.zeros(SIZE, dtype=torch.bool)
    best[scores[0].topk(SIZE // 2).indices] = True  # without all that would be looked at first
    lists = [Shortlist(1), Shortlist(40), Shortlist(10, some), Shortlist(300), Shortlist(30, best)]
    lists += [Shortlist(SIZE)] if sample == 4096 else []
    met = set()
    for seed in range(3):
        wanted = torch.randint(-1, SIZE, (ROWS,), generator=torch.Generator().manual_seed(seed))
        wanted[:4] = torch.tensor([int(logits[row].topk(1 + 3 * row).indices[-1]) for row in range(4)])
        pairs = above(logits, wanted)
        ask = {"host": on_lists, "device": replay_lists._on_device}[way]
        for one, found in zip(lists, ask(scores, pairs, wanted, lists, WIDTH), strict=True):
            left = [True] * SIZE if one.without is None else (~one.without).tolist()
            for row, token in enumerate(wanted.tolist()):
                members = {*[i for i in ordered(scores[row]) if left[i]][: one.size]}
                assert bool(found.inside[row]) == (token in members)
                if token < 0 or (left[token] and token not in members):
                    continue
                order = ordered(logits[row])
                expected = len(members & set(order[: order.index(token)]))
                met.add(min(expected, WIDTH))
                assert min(int(found.above[row]), WIDTH) == min(expected, WIDTH)
    assert {0, 1, WIDTH} <= met


def test_a_pivot_keeps_little_of_a_long_row_and_never_too_little() -> None:
    row = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    for most in (1, 128, 4096):
        pool = replay_lists._pool(row, most)
        assert set(np.argpartition(-row, most)[:most].tolist()) <= set(pool.tolist())
        assert len(pool) < 8000
    adverse = np.zeros(150_000, np.float32)
    adverse[::36] = 1.0  # the sample sees nothing else, and takes them for the rule
    assert len(replay_lists._pool(adverse, 100_000)) == len(adverse)
