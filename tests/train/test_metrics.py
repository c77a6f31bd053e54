"""Figures of the TTT unroll: sums over batches and processes, causes of loss, accepted lengths."""

from __future__ import annotations

import itertools

import pytest
import torch

from vocabforge.train.loss.rows import StepFigures
from vocabforge.train.metrics import TTTTotals, expected_accepted_length


def figures(
    loss_sum: float,
    counted: list[int],
    hits: list[int],
    overlaps: list[float] | None = None,
    outside: int = 0,
    ceiling: float | None = None,
) -> StepFigures:
    """One step of one batch of one row (1, T)."""
    rows, hit = torch.tensor([counted]).bool(), torch.tensor([hits]).bool()
    overlap = torch.tensor([overlaps or [0.5] * len(counted)]) * rows
    return StepFigures(
        loss_sum=torch.tensor(loss_sum),
        rows=rows.sum(),
        correct=(hit & rows).sum(),
        outside=torch.tensor(outside),
        overlap_sum=overlap.sum(),
        ceiling_sum=rows.sum().float() if ceiling is None else torch.tensor(ceiling),
        overlaps=overlap,
        hits=hit & rows,
        counted=rows,
    )


def test_totals_by_hand() -> None:
    totals = TTTTotals.zeros(2)
    totals.add([figures(6.0, [1, 1, 1, 0], [1, 0, 1, 0]), figures(6.0, [1, 1, 0, 0], [1, 1, 0, 0])])
    other = TTTTotals.zeros(2)  # of another process
    other.add([figures(5.0, [1, 0, 0, 0], [1, 0, 0, 0]), figures(1.0, [1, 0, 0, 0], [0, 0, 0, 0])])
    summary = TTTTotals(totals.sums + other.sums).summary()
    assert summary["loss"] == pytest.approx([11 / 4, 7 / 3])
    assert summary["accuracy"] == pytest.approx([3 / 4, 2 / 3])
    # Step 1 after a hit at step 0: row 0 hit and hit, row 1 missed before, row 0 of the second missed.
    assert summary["conditional_acceptance"] == pytest.approx([3 / 4, 1 / 2])
    assert summary["chain_accepted_length"] == pytest.approx(1 + 3 / 4 + 3 / 8)
    assert summary["rows"] == 4


def test_losses_are_split_by_cause() -> None:
    totals = TTTTotals.zeros(1)
    totals.add([figures(4.0, [1, 1, 1, 1], [1, 0, 0, 0], [0.9, 0.4, 0.1, 0.2], outside=2, ceiling=2.5)])
    totals.add([figures(32.0, [1, 1, 1, 1], [1, 1, 0, 0], [1.0, 0.8, 0.3, 0.3], outside=0, ceiling=3.9)])
    summary = totals.summary()
    assert summary["loss"] == pytest.approx([36 / 6]), "rows outside carry no loss"
    assert summary["accuracy"] == pytest.approx([3 / 8]), "rows outside are misses"
    assert summary["out_of_vocabulary"] == pytest.approx([2 / 8])
    assert summary["drafter_wrong"] == pytest.approx([3 / 8])
    assert summary["acceptance"] == pytest.approx([4.0 / 8])
    assert summary["lost_outside"] == pytest.approx([1.6 / 8])
    assert summary["lost_wrong"] == pytest.approx([2.4 / 8])
    for parts in (
        ("accuracy", "out_of_vocabulary", "drafter_wrong"),
        ("acceptance", "lost_outside", "lost_wrong"),
    ):
        assert sum(summary[name][0] for name in parts) == pytest.approx(1.0)


def test_sampled_length_is_the_product_of_overlaps_along_each_row() -> None:
    first = [0.9, 0.5, 0.2, 0.7]
    second = [0.6, 0.4, 0.1, 0.0]  # the last row ends before step 1
    totals = TTTTotals.zeros(2)
    totals.add([figures(1.0, [1, 1, 1, 1], [0] * 4, first), figures(1.0, [1, 1, 1, 0], [0] * 4, second)])
    a1 = sum(first) / 4
    a2 = sum(a * b for a, b in zip(first[:3], second)) / sum(first[:3])
    assert totals.summary()["sampled_accepted_length"] == pytest.approx(1 + a1 + a1 * a2)


def test_a_warm_up_of_fewer_steps_leaves_the_later_columns_alone() -> None:
    totals = TTTTotals.zeros(3)
    totals.add([figures(2.0, [1, 1], [1, 0])])
    assert totals.summary()["accuracy"] == pytest.approx([0.5, 0.0, 0.0])
    assert float(totals.sums[:, 1:].abs().sum()) == 0.0


def test_nothing_counted_is_zero_not_a_division() -> None:
    summary = TTTTotals.zeros(3).summary()
    assert summary["accuracy"] == summary["lost_wrong"] == summary["acceptance"] == [0.0] * 3
    assert summary["chain_accepted_length"] == summary["sampled_accepted_length"] == 1.0


def test_expected_accepted_length_equals_the_closed_form_and_enumeration() -> None:
    for a, g in ((0.0, 4), (0.7, 5), (1.0, 6)):
        closed = g + 1 if a == 1 else (1 - a ** (g + 1)) / (1 - a)
        assert expected_accepted_length([a] * g) == pytest.approx(closed)
    chances = [0.9, 0.5, 0.2]
    total = 0.0
    for outcome in itertools.product([True, False], repeat=3):
        probability = 1.0
        for hit, chance in zip(outcome, chances):
            probability *= chance if hit else 1 - chance
        total += probability * (1 + next((i for i, hit in enumerate(outcome) if not hit), 3))
    assert expected_accepted_length(chances) == pytest.approx(total)
