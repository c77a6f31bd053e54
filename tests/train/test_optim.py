"""Optimiser groups and the learning-rate schedule."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vocabforge.train.checkpoint import full_state, restore
from vocabforge.train.config import OptimConfig
from vocabforge.train.optim import (
    MasterAdamW,
    clip_global_norm,
    learning_rate,
    make_optimizer,
    set_learning_rate,
)


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


def test_schedule_stays_at_its_rate_until_it_decays() -> None:
    config = OptimConfig(steps=100, lr=2.0, warmup_fraction=0.2, decay_fraction=0.25)
    rates = [learning_rate(step, config) for step in range(100)]
    assert set(rates[19:81]) == {2.0}
    assert rates[90] == pytest.approx(1.0)  # half-way of the cosine over the last 20 steps
    assert all(a > b for a, b in itertools.pairwise(rates[80:]))


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.0), (1, 1.0), (2, 0.5), (5, 1.0)])
def test_schedule_of_short_runs_is_positive(steps: int, warmup: float) -> None:
    config = OptimConfig(steps=steps, lr=1.0, warmup_fraction=warmup)
    assert all(0 < learning_rate(step, config) <= 1.0 for step in range(steps))


def test_only_matrices_decay_and_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False))
    model[2].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(dict(model.named_parameters()), OptimConfig(steps=1, lr=0.1, weight_decay=0.5))
    set_learning_rate(optimizer, 0.01)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before)]
    assert changed == [True, False, False, False, False]  # matrix, bias, norm's two vectors, frozen matrix
    assert torch.allclose(model[0].weight, before[0] * (1 - 0.01 * 0.5))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 4)).to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> list[float]:
    """Losses of a small regression; inputs are fp32, products run in the weights' type."""
    g = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    truth = torch.randn(8, 4, generator=torch.Generator().manual_seed(99))
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 8, generator=g)
        loss = (model(x.to(dtype)).float() - (x @ truth).tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


def masters(model: nn.Module, optimizer: MasterAdamW) -> Tensor:
    return torch.cat([optimizer.state[p]["master"].flatten() for p in model.parameters()])


def adam(model: nn.Module, lower: torch.dtype = torch.bfloat16, **settings: Any) -> MasterAdamW:
    optimizer = make_optimizer(dict(model.named_parameters()), OptimConfig(steps=1, **settings), lower=lower)
    assert isinstance(optimizer, MasterAdamW)
    return optimizer


def test_masters_follow_fp32_where_bf16_alone_stands_still() -> None:
    settings: dict[str, Any] = {"lr": 2e-5, "betas": (0.9, 0.95)}
    exact, kept, plain = net(), net(), net(torch.bfloat16)
    start = weights(exact)
    train(exact, torch.optim.AdamW(exact.parameters(), weight_decay=0.0, **settings), 200)
    optimizer = adam(kept, **settings)
    assert torch.equal(masters(kept, optimizer), start), "masters are the exact weights"
    train(kept, optimizer, 200)
    train(plain, torch.optim.AdamW(plain.parameters(), weight_decay=0.0, **settings), 200)
    moved = float((weights(exact) - start).norm())
    assert float((masters(kept, optimizer) - weights(exact)).norm()) < 0.2 * moved
    stuck = (weights(plain) == start.bfloat16().float()).float().mean()
    assert float(stuck) > 0.5, "updates of 2e-5 vanish in bf16"
    assert all(p.dtype == torch.bfloat16 for p in kept.parameters())
    assert torch.equal(weights(kept), masters(kept, optimizer).bfloat16().float())


def test_masters_are_updated_exactly_as_by_torch() -> None:
    ours, theirs = net(), net()
    train(ours, adam(ours, torch.float32, lr=1e-2, weight_decay=0.1), 20)
    train(
        theirs,
        make_optimizer(dict(theirs.named_parameters()), OptimConfig(steps=1, lr=1e-2, weight_decay=0.1)),
        20,
    )
    assert torch.equal(weights(ours), weights(theirs))


def test_a_resumed_run_repeats_the_interrupted_one_bit_for_bit() -> None:
    model = net()
    optimizer = adam(model, lr=1e-3)
    train(model, optimizer, 5)
    named, state = dict(model.named_parameters()), optimizer.state
    kept = {name: state[p]["master"].clone() for name, p in named.items()}
    entries = full_state(optimizer, named)
    losses = train(model, optimizer, 5, seed=2)

    again = net()
    resumed = adam(again, lr=1e-3)
    restore(resumed, dict(again.named_parameters()), kept, entries)
    assert train(again, resumed, 5, seed=2) == losses
    assert torch.equal(masters(again, resumed), masters(model, optimizer))


def test_gradients_add_up_in_fp32_when_asked() -> None:
    model = nn.Linear(4, 1, bias=False)
    make_optimizer(
        dict(model.named_parameters()), OptimConfig(steps=1), lower=torch.bfloat16, fp32_gradients=True
    )
    x = torch.tensor([[1.0, 1e-3, 0.0, 0.0]], dtype=torch.bfloat16)
    (model(x) * 256).sum().backward()
    for _ in range(4):
        (model(x) * 0.5).sum().backward()  # a half vanishes beside 256 in bf16
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32
    assert float(model.weight.grad[0, 0]) == 258.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clipping_uses_one_fp32_norm(dtype: torch.dtype) -> None:
    model = net(dtype)
    for index, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 0.3 + index)
    exact = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None]).norm()
    norm = clip_global_norm(model.parameters(), 0.5)
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm, exact, rtol=1e-6, atol=0)
    after = torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert float(after) == pytest.approx(0.5, rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    clip_global_norm(model.parameters(), 10.0)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, model.parameters())), (
        "below the limit: untouched"
    )


def test_a_gradient_that_is_not_finite_shows_in_the_norm() -> None:
    model = net()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    next(model.parameters()).grad[0, 0] = torch.nan  # type: ignore[index]
    assert not torch.isfinite(clip_global_norm(model.parameters(), 1.0))
    assert float(clip_global_norm([], 1.0)) == 0.0
