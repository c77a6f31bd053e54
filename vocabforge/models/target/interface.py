"""The interface of decoding targets, implemented by the lean model and an adapter for Transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..kv_cache import causal_mask, near_rule
from .logits import LogitTransform


class TargetOutput(NamedTuple):
    """``hidden`` (B, T, H) is the input of the LM head; ``aux`` (B, T, n * H) are layer outputs, or None."""

    hidden: Tensor
    aux: Tensor | None


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Sizes of a target.

    Attributes:
        sliding_window: smallest window of any layer, in positions; None if no layer has a window.
        chunk: chunk size if layers attend only within a query's own chunk (Llama 4), otherwise None.
        recurrent: some layers have a state instead of keys, so that chains can be verified but trees cannot.
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
    """A causal language model with a slot-based cache."""

    @property
    def config(self) -> TargetConfig: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def embedding(self) -> Tensor:
        """Unscaled input embeddings (V, H)."""
        ...

    @property
    def lm_head_weight(self) -> Tensor:
        """LM head weight (V, H)."""
        ...

    @property
    def transform(self) -> LogitTransform:
        """Transform applied to the LM head's output."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return all weights by name."""
        ...

    def new_cache(self, capacity: int, batch: int = 1) -> Any:
        """Return a cache of ``batch`` rows of ``capacity`` slots."""
        ...

    def embed(self, ids: Tensor) -> Tensor:
        """Embed token ids, as the first layer reads them: (B, T) -> (B, T, H)."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the model's logits: (..., H) -> (..., V)."""
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


def whole_pass(model: Target, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> TargetOutput:
    """Run texts in one causal pass and return every position. Call it under ``torch.inference_mode()``.

    Args:
        ids: (B, T) int64, right-padded.
        aux_layers: 0-based layers whose outputs are also returned.
    """
    rows, length = ids.shape
    places = torch.arange(length, device=model.device)
    mask = causal_mask(places, places)
    near = near_rule(model.config.sliding_window, model.config.chunk)
    return model.forward(
        ids.to(model.device),
        places.expand(rows, -1),
        cache=model.new_cache(length, rows),
        slots=places,
        mask=mask,
        window_mask=None if near is None else mask & near(places[:, None], places[None]),
        aux_layers=aux_layers,
    )


def next_logits(model: Target, ids: Sequence[int]) -> Tensor:
    """Return the (V,) logits after some tokens, in the model's dtype."""
    return model.logits(whole_pass(model, torch.tensor([list(ids)])).hidden[0, -1])
