"""What stands above a token, on the host and as on a device, against sorting."""

from __future__ import annotations

import torch

from tests.evaluate.replay_scores import ROWS, SIZE, kinds, ordered, scores_of, ways
from vocabforge.evaluate import replay_above
from vocabforge.evaluate.replay_above import above


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
