"""Masked grouped-query attention for Transformers on the CPU that does not repeat keys and values."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "grouped_sdpa"
_OTHERS = ("softcap", "position_bias")  # other inputs that change masks or scores


def grouped_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, Any]:
    """Compute Transformers' ``sdpa``: (B, h, T, D) queries and (B, kv, S, D) keys -> (B, T, h, D)."""
    if attention_mask is None or any(given.get(name) is not None for name in _OTHERS):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=given.get("scaling"),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)
