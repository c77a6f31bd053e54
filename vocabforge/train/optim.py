"""Optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from .config import OptimConfig
from .master_weights import MasterAdamW


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    config: OptimConfig,
    *,
    lower: torch.dtype | None = None,
    fp32_gradients: bool = False,
) -> torch.optim.Optimizer:
    """AdamW, without weight decay on vectors (norms).

    Args:
        lower: cast the parameters to this type and keep fp32 masters; see :class:`MasterAdamW`.
        fp32_gradients: add gradients up in fp32 although parameters are lower.
    """
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if lower is None:
        one_pass: dict[str, bool] = {"fused": True} if config.fused else {"foreach": True}
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, **one_pass)
    return MasterAdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        lower=lower,
        fp32_gradients=fp32_gradients,
        foreach=True,
    )


def learning_rate(step: int, config: OptimConfig) -> float:
    """Learning rate of 0-based ``step``: linear warm-up, then a cosine to ``min_lr_fraction``."""
    warmup = max(1, round(config.warmup_fraction * config.steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - warmup)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.lr * (config.min_lr_fraction + (1.0 - config.min_lr_fraction) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value
