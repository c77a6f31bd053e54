"""What is above a token, and what of a shortlist is, against sorting in plain Python."""

from __future__ import annotations

import pytest
import torch
from replay.lists import Shortlist, above, on_lists

ROWS, SIZE = 9, 700
kinds = pytest.mark.parametrize("kind", ["real", "ties", "equal"])


def scores_of(kind: str, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(seed))
    return {"real": drawn, "ties": (drawn * 2).round(), "equal": torch.zeros(ROWS, SIZE)}[kind]


def ordered(row: torch.Tensor) -> list[int]:
    """Head rows, best first, ties to the lower one."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@kinds
def test_above_is_what_sorting_puts_before(kind: str) -> None:
    scores = scores_of(kind)
    wanted = torch.tensor([0, SIZE - 1, 5, -1, 300, 17, -1, 640, 2])
    pairs = above(scores, wanted)
    member = pairs.columns % 3 == 0
    for row, place in enumerate(wanted.tolist()):
        order = ordered(scores[row])
        expected = set(order[: order.index(place)]) if place >= 0 else set()
        assert set(pairs.columns[pairs.rows == row].tolist()) == expected
        assert int(pairs.count(member)[row]) == sum(one % 3 == 0 for one in expected)


@kinds
@pytest.mark.parametrize("exact", ["real", "ties"])
def test_lists_hold_exactly_the_best(kind: str, exact: str) -> None:
    """Several sizes at once, some without head rows that are left out."""
    scores, logits = scores_of(kind, seed=1), scores_of(exact, seed=2)
    some = torch.zeros(SIZE, dtype=torch.bool)
    some[::5] = True
    best = torch.zeros(SIZE, dtype=torch.bool)
    best[scores[0].topk(SIZE // 2).indices] = True  # without the first half of its row
    lists = [Shortlist(1), Shortlist(40), Shortlist(10, some), Shortlist(300), Shortlist(30, best)]
    lists.append(Shortlist(SIZE))
    met = set()
    for seed in range(3):
        wanted = torch.randint(-1, SIZE, (ROWS,), generator=torch.Generator().manual_seed(seed))
        wanted[:4] = torch.tensor([int(logits[row].topk(1 + 3 * row).indices[-1]) for row in range(4)])
        pairs = above(logits, wanted)
        for one, found in zip(lists, on_lists(scores, pairs, wanted, lists), strict=True):
            left = [True] * SIZE if one.without is None else (~one.without).tolist()
            for row, token in enumerate(wanted.tolist()):
                members = {*[i for i in ordered(scores[row]) if left[i]][: one.size]}
                assert bool(found.inside[row]) == (token in members)
                if token >= 0:
                    order = ordered(logits[row])
                    expected = len(members & set(order[: order.index(token)]))
                    met.add(min(expected, 4))
                    assert int(found.above[row]) == expected
    assert {0, 1, 4} <= met
