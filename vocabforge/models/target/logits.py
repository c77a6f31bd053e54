"""Logits of an LM head: the matrix product, the model's transform, and per-row statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogitTransform:
    """The elementwise transform ``softcap * tanh(scale * z / softcap)``, which preserves the order of logits.

    Attributes:
        scale: factor used by Granite, Cohere and Falcon-H1.
        softcap: cap used by Gemma 2; None for no cap.
    """

    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitTransform:
        """Read the transform from the attributes of a model's text configuration."""

        def number(key: str) -> float | None:
            value = getattr(config, key, None)
            return float(value) if value is not None else None

        scale = number("lm_head_multiplier") or number("logit_scale") or 1.0
        return cls(scale / (number("logits_scaling") or 1.0), number("final_logit_softcapping"))

    def __call__(self, logits: Tensor) -> Tensor:
        """Transform the LM head's output to the model's logits: (..., V) -> (..., V); -inf is preserved."""
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            capped = (logits / self.softcap).tanh() * self.softcap
            logits = torch.where(logits.isneginf(), logits, capped)
        return logits

    def gradient(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Convert a gradient with respect to the model's ``logits`` to the LM head's output: (..., V)."""
        if self.softcap is not None:
            grad = grad * (1 - (logits / self.softcap).square())
        return grad * self.scale if self.scale != 1.0 else grad


IDENTITY = LogitTransform()


def scores(states: Tensor, head: Tensor, out: torch.dtype) -> Tensor:
    """Compute logits ``states @ head.T`` in the head's dtype: (N, H), (R, H) -> (N, R) in dtype ``out``."""
    return product(states.to(head.dtype), head.t(), out)


def product(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    """Compute ``a @ b`` with fp32 accumulation and return it as ``out`` (fp32, or fp64 for fp64).

    Without autograd, CUDA writes fp32 directly; otherwise a bf16 product is rounded to bf16 once, at the end.
    """
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.is_cuda and out == torch.float32 and a.dtype != out and not graph:
        return torch.mm(a, b, out_dtype=out)
    return (a @ b).to(out)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """Return the accumulation dtype: fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


# Size limit of the logits held at once when computing statistics.
_LOGITS_BYTES = 1 << 28


@dataclass(frozen=True)
class LogitFacts:
    """Statistics of a target's logits over all V tokens for a loss over a draft vocabulary.

    Attributes:
        best: (...) int64, the argmax; the first of equal maxima.
        log_sum: (...) fp32, the log-sum-exp.
    """

    best: Tensor
    log_sum: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, states: Tensor, head: Tensor, transform: LogitTransform) -> LogitFacts:
        """Compute the statistics of states (N, H) and an LM head (V, H), with at most 256 MiB of logits."""
        out = accumulation(head.dtype)
        best = torch.empty(len(states), dtype=torch.int64, device=head.device)
        log_sum = torch.empty(len(states), device=head.device)
        some = max(1, _LOGITS_BYTES // (2 * out.itemsize * len(head)))  # 2 for the exponentials of the sum
        for first in range(0, len(states), some):
            part = slice(first, first + some)
            logits = transform(scores(states[part].to(head.device), head, out))
            best[part], log_sum[part] = logits.argmax(-1), logits.logsumexp(-1)
        return cls(best, log_sum)

    def map(self, change: Callable[[Tensor], Tensor]) -> LogitFacts:
        """Apply the same change, such as indexing or reshaping, to both tensors."""
        return LogitFacts(change(self.best), change(self.log_sum))
