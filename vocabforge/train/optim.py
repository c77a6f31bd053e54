"""Learning-rate schedule and AdamW, also over bf16 parameters with fp32 master weights and moments.

A bf16 number has 8 significant bits: an update below 1/256 of a weight vanishes in it. The update is therefore made to
an fp32 master copy, and the parameter is the master rounded (Micikevicius et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from .config import OptimConfig


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    config: OptimConfig,
    *,
    lower: torch.dtype | None = None,
    fp32_gradients: bool = False,
) -> torch.optim.Optimizer:
    """AdamW, without weight decay on vectors (norms); ``lower`` and ``fp32_gradients``: see :class:`MasterAdamW`."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if lower is None:
        one_pass: dict[str, bool] = {"fused": True} if config.fused else {"foreach": True}
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, **one_pass)
    return MasterAdamW(groups, config, lower, fp32_gradients=fp32_gradients)


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


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) over fp32 masters of lower parameters, bit for bit torch's on the masters.

    ``state[p]`` holds ``master``, and from the first step on ``exp_avg``, ``exp_avg_sq`` (fp32) and ``step``.

    Args:
        groups: parameter groups.
        lower: the parameters are cast to this type; what they were are the masters.
        fp32_gradients: let the backward passes add up in fp32 (needs one process: DDP's buckets have the
            parameters' type).
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        config: OptimConfig,
        lower: torch.dtype,
        *,
        fp32_gradients: bool = False,
    ) -> None:
        defaults = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
        super().__init__(groups, {**defaults, "weight_decay": config.weight_decay})
        for parameter in (p for group in self.param_groups for p in group["params"]):
            self.state[parameter] = {"master": parameter.detach().float().clone()}
            parameter.data = parameter.data.to(lower)
            if fp32_gradients:
                parameter.grad_dtype = torch.float32

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update from the parameters' gradients; those without one stay."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            states = [self.state[p] for p in parameters]
            for state in states:
                if "step" not in state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["exp_avg"] = torch.zeros_like(state["master"])
                    state["exp_avg_sq"] = torch.zeros_like(state["master"])
            adamw(
                [state["master"] for state in states],
                [p.grad.float() for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                foreach=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
            for parameter, state in zip(parameters, states):
                parameter.copy_(state["master"])


@torch.no_grad()
def clip_global_norm(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients to a common norm of at most ``limit``; returns the norm before, fp32 whatever their type."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total
