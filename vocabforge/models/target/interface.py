"""What decoding asks of a target: the lean model gives it, and any model of Transformers behind an adapter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .logits import LogitTransform


class TargetOutput(NamedTuple):
    """``hidden`` (B, T, H) as the LM head reads it; ``aux`` (B, T, n * H) layer outputs, or None."""

    hidden: Tensor
    aux: Tensor | None


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Sizes of a target.

    Attributes:
        sliding_window: the smallest window of a layer, in positions; None where all layers see everything.
        chunk: Llama 4's layers see the positions of their own chunk of this size; None elsewhere.
        recurrent: some layers have a state instead of keys: chains can be verified, trees cannot.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    sliding_window: int | None
    chunk: int | None = None
    recurrent: bool = False


class Target(Protocol):
    """A causal language model with a cache of slots."""

    @property
    def config(self) -> TargetConfig: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def embedding(self) -> Tensor:
        """(V, H) raw input rows."""
        ...

    @property
    def lm_head_weight(self) -> Tensor:
        """(V, H)."""
        ...

    @property
    def transform(self) -> LogitTransform:
        """Of the LM head's output."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """All weights."""
        ...

    def new_cache(self, capacity: int, batch: int = 1) -> Any:
        """A cache of ``batch`` rows of ``capacity`` slots."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V), as the model itself gives them."""
        ...

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: Any,
        slots: Tensor,
        mask: Any,
        window_mask: Tensor | None = None,
        aux_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run T tokens of B rows against the cache, writing their keys and values to it."""
        ...
