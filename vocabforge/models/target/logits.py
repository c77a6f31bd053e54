"""Logits of an LM head: the product, what a model does behind it, and what is kept of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogitTransform:
    """``softcap * tanh(scale * z / softcap)``, element by element; it keeps the order of logits.

    Attributes:
        scale: of Granite, Cohere and Falcon-H1.
        softcap: of Gemma 2; None leaves it out.
    """

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitTransform:
        """Read from a model's text configuration (attributes)."""

        def number(key: str) -> float | None:
            value = getattr(config, key, None)
            return float(value) if value is not None else None

        scale = number("lm_head_multiplier") or number("logit_scale") or 1.0
        return cls(scale / (number("logits_scaling") or 1.0), number("final_logit_softcapping"))

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., V) of the LM head -> (..., V) of the model; -inf stays."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            capped = (logits / self.softcap).tanh() * self.softcap
            logits = torch.where(logits.isneginf(), logits, capped)
        return logits

    def gradient(self, grad: Tensor, logits: Tensor) -> Tensor:
        """The gradient by the LM head's output, from that by ``logits``, the model's own: (..., V)."""
        if self.softcap is not None:
            grad = grad * (1 - (logits / self.softcap).square())
        return grad * self.scale if self.scale != 1.0 else grad


IDENTITY = LogitTransform()


def scores(states: Tensor, head: Tensor, out: torch.dtype) -> Tensor:
    """Logits ``states @ head.T``, read in the head's type: (N, H), (R, H) -> (N, R) of type ``out``."""
    return product(states.to(head.dtype), head.t(), out)


def product(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    """``a @ b`` accumulated in fp32 and given as ``out`` (fp32, or fp64 for fp64).

    CUDA writes fp32 where it needs no autograd; elsewhere a product of bf16 rounds to bf16 once, at its end.
    """
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.is_cuda and out == torch.float32 and a.dtype != out and not graph:
        return torch.mm(a, b, out_dtype=out)
    return (a @ b).to(out)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


# Logits that are made at once to find what is kept of them.
_LOGITS_BYTES = 1 << 28


@dataclass(frozen=True)
class LogitFacts:
    """What a loss over a draft vocabulary needs of a target's logits over all V tokens.

    Attributes:
        best: (...) int64, the argmax; of equal maxima the first.
        log_sum: (...) fp32, the log-sum-exp.
    """

    best: Tensor
    log_sum: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, states: Tensor, head: Tensor, transform: LogitTransform) -> LogitFacts:
        """From hidden states (N, H) and an LM head (V, H); at most 256 MiB of logits are held."""
        out = accumulation(head.dtype)
        best = torch.empty(len(states), dtype=torch.int64, device=head.device)
        log_sum = torch.empty(len(states), device=head.device)
        some = max(1, _LOGITS_BYTES // (2 * out.itemsize * len(head)))  # twice: the sum's exponentials
        for first in range(0, len(states), some):
            part = slice(first, first + some)
            logits = transform(scores(states[part].to(head.device), head, out))
            best[part], log_sum[part] = logits.argmax(-1), logits.logsumexp(-1)
        return cls(best, log_sum)

    def map(self, change: Callable[[Tensor], Tensor]) -> LogitFacts:
        """Both tensors changed alike: indexed, moved, reshaped."""
        return LogitFacts(change(self.best), change(self.log_sum))
