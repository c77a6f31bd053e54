"""A target read in one pass over whole texts: the plain computation that decoding is held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..models.kv_cache import causal_mask
from ..models.lean import LeanModel, LeanOutput


def whole_pass(model: LeanModel, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> LeanOutput:
    """Every position of some texts, each seeing what stands before it. Run it under ``torch.inference_mode()``.

    Args:
        model: the target.
        ids: (B, T) int64; shorter texts are padded at their ends, where no other token looks.
        aux_layers: 0-based layers whose outputs are wanted, too.
    """
    rows, length = ids.shape
    places = torch.arange(length, device=model.device)
    window = model.config.sliding_window
    return model.forward(
        ids.to(model.device),
        places.expand(rows, -1),
        cache=model.new_cache(length, rows),
        slots=places,
        mask=causal_mask(places, places),
        window_mask=None if window is None else causal_mask(places, places, window),
        aux_layers=aux_layers,
    )


def next_logits(model: LeanModel, ids: Sequence[int]) -> Tensor:
    """(V,) logits behind some tokens, in the model's dtype."""
    return model.logits(whole_pass(model, torch.tensor([list(ids)])).hidden[0, -1])
