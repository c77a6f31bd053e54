"""Attention of the training-time test: causal step-0 keys and a row's own later keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from .target import document_mask


@dataclass
class TTTState:
    """What an unroll has made so far.

    Attributes:
        document: (B, T) document number in its row, 0 for padding.
        attention: ``auto``, ``eager``, ``merged`` or ``flex``.
        k, v: one (B, kv, T, D) pair a step; entry 0 holds the causal keys, later ones the diagonal keys.
        start: (B, T, H) what the first step was fed, for drafters whose later steps read it again (Medusa).
    """

    document: Tensor
    attention: str = "auto"
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    start: Tensor | None = None


def ttt_attention(q: Tensor, state: TTTState) -> Tensor:
    """Attention over the step-0 keys s <= t of a row's document and the row's own keys of later steps.

    Args:
        q: (B, h, T, D) queries of the newest step, whose keys are already in ``state``.

    Returns:
        (B, h, T, D).
    """
    return _eager(q, state)


def _eager(q: Tensor, state: TTTState) -> Tensor:
    """The reference: all (T, T + n - 1) weights at once."""
    visible = document_mask(state.document)
    group = q.shape[1] // state.k[0].shape[1]
    if len(state.k) == 1:  # no diagonal part yet: plain attention, which has a fused kernel
        return F.scaled_dot_product_attention(
            q, state.k[0], state.v[0], attn_mask=visible, enable_gqa=group > 1
        )
    k = [key.repeat_interleave(group, dim=1) for key in state.k]
    v = [value.repeat_interleave(group, dim=1) for value in state.v]
    q = q * q.shape[-1] ** -0.5
    length = k[0].shape[2]
    hidden = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, torch.finfo(q.dtype).min)
    causal = q @ k[0].transpose(-1, -2) + hidden  # (B, h, T, T)
    diagonal = [(q * key).sum(-1, keepdim=True) for key in k[1:]]  # each (B, h, T, 1)
    weights = torch.cat([causal, *diagonal], dim=-1).float().softmax(-1).to(q.dtype)  # (B, h, T, T + n - 1)
    shared, *own = weights.split([length] + [1] * len(diagonal), dim=-1)
    attended = shared @ v[0]
    for weight, value in zip(own, v[1:]):
        attended = attended + weight * value
    return attended
