"""Reference forward pass of a drafter as servers implement it: fused projections, own RoPE, raw tensors.

It shares no code with ``models``, so that a bug there cannot hide here. One sequence, no batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class ServedSizes:
    """Settings as a server reads them.

    ``head_rows`` is the number of rows of the LM head, ``n_aux`` the number of target states that ``fc``
    reads (EAGLE-3). ``eagle1`` includes EAGLE-2.
    """

    family: Literal["eagle3", "eagle1"]
    hidden: int
    target_hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    head_rows: int
    eps: float
    rope: Mapping[str, Any]
    positions: int
    layers: int = 1
    n_aux: int = 3
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    attention_bias: bool = False


@dataclass
class Past:
    """Cached keys (after rotation) and values of every layer, (S, kv_heads, D) each."""

    keys: dict[int, list[Tensor]] = field(default_factory=dict)
    values: dict[int, list[Tensor]] = field(default_factory=dict)


class ServedDrafter:
    """Decoder layers between the target's states and the LM head.

    Parameters, including shared ones, have the server's names (``model.*``, ``lm_head.weight``).
    """

    def __init__(self, sizes: ServedSizes, parameters: Mapping[str, Tensor]) -> None:
        self.sizes = sizes
        self.parameters = {name: tensor.float() for name, tensor in parameters.items()}

    def fuse(self, features: Tensor) -> Tensor:
        """Return the first step's input, (T, n_aux * Ht) -> (T, H); EAGLE-1 uses the states unchanged."""
        s, p = self.sizes, self.parameters
        if s.family == "eagle1":
            return features
        if s.norm_before_fc:
            features = self._norm("model.input_norm", features)
        if s.fc_norm:
            parts = features.chunk(s.n_aux, -1)
            features = torch.cat([self._norm(f"model.fc_norm.{i}", part) for i, part in enumerate(parts)], -1)
        return F.linear(features, p["model.fc.weight"], p.get("model.fc.bias"))

    def step(self, ids: Tensor, states: Tensor, positions: Tensor, past: Past) -> tuple[Tensor, Tensor]:
        """Run N tokens with causal attention, after those in ``past``.

        Args:
            states: (N, H), from ``fuse`` or fed back.

        Returns:
            Draft logits (N, head_rows), and the states to feed back (N, H).
        """
        s, p = self.sizes, self.parameters
        embedded = p["model.embed_tokens.weight"][ids]
        if s.family == "eagle1":
            x = F.linear(torch.cat([embedded, states], -1), p["model.fc.weight"], p.get("model.fc.bias"))
            out = self._mlp(x + self._attention(x, positions, past, 0), 0)
            return F.linear(out, p["lm_head.weight"]), out
        normed = self._norm("model.layers.0.hidden_norm", states)
        residual = normed if s.norm_before_residual else states
        x = torch.cat([self._norm("model.layers.0.input_layernorm", embedded), normed], -1)
        raw = self._mlp(residual + self._attention(x, positions, past, 0), 0)
        for layer in range(1, s.layers):
            x = self._norm(f"model.layers.{layer}.input_layernorm", raw)
            raw = self._mlp(raw + self._attention(x, positions, past, layer), layer)
        read = self._norm("model.norm", raw)
        return F.linear(read, p["lm_head.weight"]), read if s.norm_output else raw

    def _mlp(self, x: Tensor, layer: int) -> Tensor:
        prefix = f"model.layers.{layer}."
        inner = self._norm(prefix + "post_attention_layernorm", x)
        gate, up = F.linear(inner, self.parameters[prefix + "mlp.gate_up_proj.weight"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.parameters[prefix + "mlp.down_proj.weight"])

    def _attention(self, x: Tensor, positions: Tensor, past: Past, layer: int) -> Tensor:
        s, prefix = self.sizes, f"model.layers.{layer}.self_attn."
        joined = F.linear(x, self.parameters[prefix + "qkv_proj.weight"])
        wide, narrow = s.heads * s.head_dim, s.kv_heads * s.head_dim
        q, k, v = (part.unflatten(-1, (-1, s.head_dim)) for part in joined.split([wide, narrow, narrow], -1))
        if s.qk_norm:
            q, k = self._norm(prefix + "q_norm", q), self._norm(prefix + "k_norm", k)
        cos, sin = rotation(s.rope, s.head_dim, positions)
        q, past_keys = rotate(q, cos, sin), rotate(k, cos, sin)
        past.keys.setdefault(layer, []).append(past_keys)
        past.values.setdefault(layer, []).append(v)
        keys, values = torch.cat(past.keys[layer]), torch.cat(past.values[layer])  # (S, kv, D)
        group = s.heads // s.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("nhd,shd->hns", q, keys) / math.sqrt(s.head_dim)
        count, seen = len(x), len(keys)
        hidden = torch.ones(count, seen, dtype=torch.bool).triu(seen - count + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        attended = torch.einsum("hns,shd->nhd", weights, values).flatten(1)
        return F.linear(attended, self.parameters[prefix + "o_proj.weight"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.sizes.eps)
        return x * scale * self.parameters[f"{name}.weight"]


def rotation(rope: Mapping[str, Any], size: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (N, 1, D / 2) of rotary positions (Su et al. 2021) with context extensions."""
    base = float(rope["rope_theta"])
    speeds = torch.tensor([base ** (-2 * i / size) for i in range(size // 2)], dtype=torch.float64)
    kind = rope["rope_type"]
    if kind == "linear":
        speeds = speeds / float(rope["factor"])
    elif kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        turns = float(rope["original_max_position_embeddings"]) * speeds / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)  # 1: unscaled, 0: scaled by the whole factor
        speeds = keep * speeds + (1 - keep) * speeds / float(rope["factor"])
    scale = 1.0
    if kind == "yarn":  # Peng et al. 2023; servers multiply the default factor by attn_factor
        factor, first = float(rope["factor"]), float(rope["original_max_position_embeddings"])
        rates = (float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1))
        begin, end = (size * math.log(first / (2 * math.pi * n)) / (2 * math.log(base)) for n in rates)
        if rope.get("truncate", True):
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(begin, 0), min(end, size - 1)
        slow = ((torch.arange(size // 2) - begin) / (end - begin or 0.001)).clamp(0, 1)
        speeds = (1 - slow) * speeds + slow * speeds / factor
        scale = (0.1 * math.log(max(factor, 1)) + 1) * float(rope.get("attn_factor", 1))
    angles = positions.double()[:, None, None] * speeds
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate (N, heads, D) by pairs of dimensions i and i + D / 2."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
