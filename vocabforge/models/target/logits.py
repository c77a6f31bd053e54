"""What a model does to its logits behind the LM head."""

from __future__ import annotations

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
