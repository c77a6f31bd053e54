"""What decoding asks of a target: the lean model gives it, and any model of Transformers behind an adapter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .logits import LogitTransform


class TargetOutput(NamedTuple):
    """``hidden`` (B, T, H) as the LM head reads it; ``aux`` (B, T, n * H) layer outputs, or None."""

    hidden: Tensor
    aux: Tensor | None


class TargetConfig(Protocol):
    """Sizes of a target.

    Attributes:
        sliding_window: the window of the layers that have one, in positions; None where all see everything.
        chunk: the chunk of layers that see their own chunk only; None elsewhere.
        recurrent: some layers have a state instead of keys: chains can be verified, trees cannot.
    """

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def sliding_window(self) -> int | None: ...
    @property
    def chunk(self) -> int | None: ...
    @property
    def recurrent(self) -> bool: ...


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
