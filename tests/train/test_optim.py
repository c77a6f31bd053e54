"""Optimiser groups and the learning-rate schedule."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from vocabforge.train.config import OptimConfig
from vocabforge.train.optim import learning_rate, make_optimizer, set_learning_rate


def test_schedule_warms_up_linearly_and_ends_at_the_floor() -> None:
    config = OptimConfig(steps=100, lr=2.0, warmup_fraction=0.1, min_lr_fraction=0.25)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert max(rates) == 2.0 == rates[9] == rates[10]
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(2.0 * (0.25 + 0.75 * 0.5))  # half-way of the cosine
    assert learning_rate(100, config) == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.5, abs=2e-3)
    assert rates[77] == pytest.approx(0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi * 67 / 90)))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (1, 1.0), (2, 0.5), (5, 1.0)])
def test_schedule_of_short_runs_is_positive(steps: int, warmup: float) -> None:
    config = OptimConfig(steps=steps, lr=1.0, warmup_fraction=warmup)
    assert all(0 < learning_rate(step, config) <= 1.0 for step in range(steps))


def test_only_matrices_decay_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    model[2].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(model.parameters(), OptimConfig(steps=1, lr=0.1, weight_decay=0.5))
    set_learning_rate(optimizer, 0.01)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before)]
    assert changed == [True, False, False, False, False]  # matrix, bias, norm's two vectors, frozen matrix
    assert torch.allclose(model[0].weight, before[0] * (1 - 0.01 * 0.5))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4
