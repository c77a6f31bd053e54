"""Learning-rate schedule; AdamW, also with bf16 parameters, fp32 master weights and fp32 moments; Muon.

bf16 has 8 significant bits: an update below 1/256 of a weight is lost. Updates are therefore applied to an
fp32 master copy, and the parameter is the rounded master (Micikevicius et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from ..models.target.load import multiplies_bf16
from .config import OptimConfig

# Name parts of matrices with a row for each token: they do not map between states and are trained by AdamW.
_TOKEN_ROWS = ("embed_tokens", "lm_head", "markov_w1", "markov_w2", "codebook", "vocab.weight")


def make_optimizer(
    parameters: Mapping[str, nn.Parameter],
    config: OptimConfig,
    *,
    lower: torch.dtype | None = None,
    fp32_gradients: bool = False,
) -> torch.optim.Optimizer:
    """Create AdamW, or Muon for hidden matrices and AdamW for the rest; vectors (norms) have no weight decay.

    Args:
        parameters: parameters by name; frozen ones are skipped.
        lower, fp32_gradients: see :class:`MasterAdamW`.
    """
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    muon = [p for name, p in trained.items() if config.name == "muon" and is_hidden_matrix(name, p)]
    taken = {id(p) for p in muon}
    rest = [p for p in trained.values() if id(p) not in taken]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if lower is not None:
        return MasterAdamW(groups, config, lower, fp32_gradients=fp32_gradients)
    one_pass: dict[str, bool] = {"fused": True} if config.fused else {"foreach": True}
    adamw = None
    if groups:
        adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, **one_pass)
    return MuonAdamW(muon, adamw, config) if muon or adamw is None else adamw


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether Muon can train a parameter: a matrix between states, not a token table or a vector."""
    return parameter.dim() == 2 and min(parameter.shape) > 1 and not any(part in name for part in _TOKEN_ROWS)


def learning_rate(step: int, config: OptimConfig) -> float:
    """Return the learning rate of 0-based ``step``: linear warm-up, ``lr``, cosine to ``min_lr_fraction``."""
    warmup = max(1, round(config.warmup_fraction * config.steps))
    if step < warmup:
        return config.lr * (step + 1) / warmup
    decay = max(1, round(config.decay_fraction * (config.steps - warmup)))
    progress = (step - (config.steps - decay)) / decay
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return config.lr * (config.min_lr_fraction + (1.0 - config.min_lr_fraction) * cosine)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019) with fp32 masters of low-precision parameters.

    Updates of the masters are bitwise equal to torch's AdamW. ``state[p]`` holds ``master``, and from the
    first step on ``exp_avg``, ``exp_avg_sq`` (fp32) and ``step``.

    Args:
        lower: dtype that the parameters are cast to; their original values become the masters.
        fp32_gradients: accumulate gradients in fp32 (single process only: DDP's buckets have the parameters'
            dtype).
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
        """Update all parameters that have a gradient."""
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


class MuonAdamW(torch.optim.Optimizer):
    """torch's Muon (Jordan et al. 2024) for some parameters and AdamW for the rest, as one optimiser.

    Muon's step is scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982), so both use
    the same learning rate and weight decay. ``state[p]`` holds ``momentum_buffer`` or AdamW's state.
    """

    def __init__(
        self, matrices: list[nn.Parameter], adamw: torch.optim.AdamW | None, config: OptimConfig
    ) -> None:
        muon = torch.optim.Muon(
            matrices, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        self._parts = [part for part in (muon, adamw) if part is not None]
        self._fp32 = matrices[0].device.type == "cpu" and not multiplies_bf16() if matrices else False
        groups = [group for part in self._parts for group in part.param_groups]
        super().__init__(groups, {} if adamw is None else adamw.defaults)
        self.param_groups = groups  # share the parts' groups instead of copies
        for part in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        with _newton_schulz_in_fp32() if self._fp32 else nullcontext():
            for part in self._parts:
                part.step()


@contextmanager
def _newton_schulz_in_fp32() -> Iterator[None]:
    """Make torch's Muon orthogonalise in fp32: without bf16 instructions bf16 products are 100x slower."""
    from torch.optim import _muon

    module: Any = _muon
    original = module._zeropower_via_newtonschulz

    def in_fp32(grad: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
        a, b, c = coefficients
        x = grad.float().T if grad.shape[0] > grad.shape[1] else grad.float()
        x = x / x.norm().clamp(min=eps)
        for _ in range(steps):
            gram = x @ x.T
            x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.T if grad.shape[0] > grad.shape[1] else x

    module._zeropower_via_newtonschulz = in_fp32
    try:
        yield
    finally:
        module._zeropower_via_newtonschulz = original


@torch.no_grad()
def clip_global_norm(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Clip the global gradient norm to ``limit``; return the norm before clipping in fp32."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in gradients]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total
