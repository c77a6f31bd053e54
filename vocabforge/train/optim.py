"""Learning-rate schedule and AdamW, also over bf16 parameters with fp32 master weights and moments.

A bf16 number has 8 significant bits: an update below 1/256 of a weight vanishes in it. The update is therefore made to
an fp32 master copy, and the parameter is the master rounded (Micikevicius et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019), bit for bit torch's on the masters.

    ``state[p]`` holds ``master``, ``exp_avg``, ``exp_avg_sq`` (fp32, the parameter's shape) and ``step``; all of it is
    made at the first step, or is there already when a checkpoint was loaded. An fp32 parameter is its own
    master. Gradients are read as fp32.

    Args:
        params: parameters or groups, as for any optimiser.
        lower: cast the parameters to this type and keep what they were as masters, exactly; None leaves them.
        fp32_gradients: let the backward passes add up in fp32 (needs one process: DDP's buckets have the
            parameters' type).
        foreach: update many tensors at once.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        lower: torch.dtype | None = None,
        fp32_gradients: bool = False,
        foreach: bool | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._foreach = foreach
        for parameter in self._parameters():
            if lower is not None and parameter.dtype == torch.float32:
                self.state[parameter] = {"master": parameter.detach().clone()}
                parameter.data = parameter.data.to(lower)
            if fp32_gradients and _is_low(parameter):
                parameter.grad_dtype = torch.float32

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update from the parameters' gradients; those without one stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._update(group, [p for p in group["params"] if p.grad is not None])
        return loss

    def _update(self, group: Mapping[str, Any], parameters: list[nn.Parameter]) -> None:
        states = [self._state(p) for p in parameters]
        masters = [state.get("master", p.data) for p, state in zip(parameters, states)]
        adamw(
            masters,
            [_gradient(p).to(master.dtype) for p, master in zip(parameters, masters)],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=self._foreach,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        for parameter, state in zip(parameters, states):
            if "master" in state:
                parameter.copy_(state["master"])

    def _state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        state = self.state[parameter]
        if _is_low(parameter) and "master" not in state:
            state["master"] = parameter.detach().float()
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            like = state.get("master", parameter.data)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(like), torch.zeros_like(like)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As every optimiser's, but the state keeps its own type: torch's casts it to the parameter's."""
        super().load_state_dict(state_dict)
        order = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, parameter in zip(order, self._parameters()):
            saved = state_dict["state"].get(index)
            if saved is not None:
                self.state[parameter] = {
                    key: value.to("cpu" if key == "step" else parameter.device, copy=True)
                    for key, value in saved.items()
                }


@torch.no_grad()
def clip_global_norm(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scale all gradients so that their common norm is at most ``limit``.

    As ``torch.nn.utils.clip_grad_norm_``, but the norm is fp32 whatever the gradients' type.

    Returns:
        the norm before clipping, fp32 scalar; not finite where a gradient is not.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total


def _is_low(parameter: nn.Parameter) -> bool:
    return parameter.dtype in (torch.bfloat16, torch.float16)


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    return gradient
