"""Figures of the TTT unroll: sums over batches, conditional acceptance, accepted length."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from vocabforge.train.losses import StepFigures
from vocabforge.train.metrics import TTTTotals, expected_accepted_length, walk_chain


def figures(
    loss: float, counted: list[int], hits: list[int], outside: int = 0
) -> tuple[StepFigures, torch.Tensor]:
    rows, hit = torch.tensor([counted]).bool(), torch.tensor([hits]).bool()
    return StepFigures(torch.tensor(loss), rows.sum(), (hit & rows).sum(), torch.tensor(outside), hit), rows


def add(totals: TTTTotals, *steps: tuple[StepFigures, torch.Tensor]) -> None:
    totals.add([step for step, _ in steps], [rows for _, rows in steps])


def test_totals_by_hand() -> None:
    totals = TTTTotals.zeros(2)
    add(totals, figures(2.0, [1, 1, 1, 0], [1, 0, 1, 0]), figures(3.0, [1, 1, 0, 0], [1, 1, 0, 0]))
    add(totals, figures(5.0, [1, 0, 0, 0], [1, 0, 0, 0]), figures(1.0, [1, 0, 0, 0], [0, 0, 0, 0]))
    summary = totals.summary()
    assert summary["loss"] == pytest.approx([(2.0 * 3 + 5.0) / 4, (3.0 * 2 + 1.0) / 3])
    assert summary["accuracy"] == pytest.approx([3 / 4, 2 / 3])
    # Step 1 after a hit at step 0: row 0 hit and hit, row 1 missed before, row 0 of the second missed.
    assert summary["conditional_acceptance"] == pytest.approx([3 / 4, 1 / 2])
    assert summary["chain_accepted_length"] == pytest.approx(1 + 3 / 4 + 3 / 8)
    assert summary["rows"] == 4


def test_rows_outside_the_draft_vocabulary_are_misses_and_carry_no_loss() -> None:
    totals = TTTTotals.zeros(1)
    add(totals, figures(2.0, [1, 1, 1, 1], [1, 0, 0, 0], outside=2))  # mean over two rows
    add(totals, figures(8.0, [1, 1, 1, 1], [1, 1, 0, 0], outside=0))  # mean over four
    summary = totals.summary()
    assert summary["loss"] == pytest.approx([(2.0 * 2 + 8.0 * 4) / 6])
    assert summary["accuracy"] == pytest.approx([3 / 8])
    assert summary["out_of_vocabulary"] == pytest.approx([2 / 8])


def test_nothing_counted_is_zero_not_a_division() -> None:
    summary = TTTTotals.zeros(3).summary()
    assert summary["accuracy"] == [0.0] * 3
    assert summary["chain_accepted_length"] == 1.0


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


def test_walk_chain_equals_a_plain_walk() -> None:
    draw = random.Random(1)
    for _ in range(30):
        steps, length = draw.randint(1, 5), draw.randint(3, 25)
        hits = [[draw.random() < 0.6 for _ in range(length)] for _ in range(steps)]
        start = draw.randint(0, 2)
        expected, row = [], start
        while row < length:
            accepted = 0
            while accepted < steps and hits[accepted][row]:
                accepted += 1
            expected.append(accepted + 1)
            row += accepted + 1
        assert walk_chain(torch.tensor(hits), start, length) == expected
