"""Layers of the EAGLE drafters, used in ``eagle3.py`` and ``eagle1.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.add_rms_norm import add_rms_norm, join_norms
from ...ops.backend import HALVES
from ...ops.decoder_layers import WEIGHTS, decoder_layers, runs_layers
from ...ops.few_rows import MOST_ROWS
from ..kv_cache import CacheView, Mask, TreeMask
from ..lean.layers import layer_on_ops, rms_norm, sum_and_norm
from ..rope import apply_rope
from .parts import LayerSizes


class RMSNorm(nn.Module):
    """Root mean square norm, computed in fp32 (Zhang and Sennrich 2019)."""

    small: Tensor

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.register_buffer("small", torch.tensor(eps), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # the fused norm is faster with a backward pass, rms_norm without
            return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)
        if x.is_cuda and x.dtype in HALVES and x.dtype == self.weight.dtype:  # one kernel instead of seven
            return add_rms_norm(x.reshape(-1, x.shape[-1]), None, self.weight, self.eps)[0].view(x.shape)
        return rms_norm(x, self.weight, self.small)


class Attention(nn.Module):
    """The drafter's attention.

    Args:
        config: sizes of the drafter.
        inputs: input features of q, k and v.
        qk_norm: apply RMSNorm to q and k, as in Qwen3.
    """

    def __init__(self, config: LayerSizes, inputs: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim = c.num_heads, c.num_kv_heads, c.head_dim
        self.q_proj = nn.Linear(inputs, c.num_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, c.num_kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, c.num_kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=False)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
            self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project (B, T, inputs) to rotated q (B, h, T, D), rotated k and v (B, kv, T, D)."""
        q = self.q_proj(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        if self.qk_norm:
            q = self.q_norm(q)
        return apply_rope(q, cos, sin), *self.keys(x, cos, sin)

    def keys(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Project (B, T, inputs) to rotated keys and values, (B, kv, T, D) each."""
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)).transpose(1, 2)
        if self.qk_norm:
            k = self.k_norm(k)
        return apply_rope(k, cos, sin), v

    def output(self, attended: Tensor) -> Tensor:
        """Apply the output projection: (B, h, T, D) -> (B, T, H)."""
        return self.o_proj(attended.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


Embedded = Tensor | tuple[Tensor, Tensor]  # (B, N, H), or an embedding table (V, H) and tokens (B, N)


class DraftLayer(nn.Module):
    """A decoder layer with merged matrices for decoding: a single call on a CPU, few kernels on a GPU."""

    self_attn: Attention
    mlp: MLP
    post_attention_layernorm: RMSNorm
    # A weight that is checked for changes, its last seen state, and the merged arguments of all weights.
    _merged: tuple[Tensor, tuple[int, int], dict[str, Any]] | None = None

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Add the attention output and the MLP: (B, T, H), (B, h, T, D) -> (B, T, H), before a final norm."""
        x = residual + self.self_attn.output(attended)
        return x + self.mlp(self.post_attention_layernorm(x))

    def fits(self, x: Tensor, mask: Mask) -> bool:
        """Return whether :func:`run_layers` supports x (B, N, H) with this mask."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        return isinstance(mask, TreeMask) or (x.shape[0] * x.shape[1] <= MOST_ROWS and runs_layers(x))

    def merged(self) -> dict[str, Any]:
        """Return the arguments of the ops for this layer, with merged matrices."""
        if self._merged is None or self._merged[1] != weight_state(self._merged[0]):
            first = self.self_attn.q_proj.weight
            self._merged = first, weight_state(first), self._merge()
        return self._merged[2]

    def _merge(self) -> dict[str, Any]:
        attention, mlp = self.self_attn, self.mlp
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        weights = {
            "qkv": torch.cat([projection.weight for projection in projections]),
            "o": attention.o_proj.weight,
            "mlp_norm": self.post_attention_layernorm.weight,
            "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            "down": mlp.down_proj.weight,
        }
        if attention.qk_norm:
            norms = (attention.q_norm, attention.heads), (attention.k_norm, attention.kv_heads)
            weights["qk_norm"] = torch.cat([norm.weight.expand(count, -1) for norm, count in norms])
        none = weights["o"].new_empty(0)
        return {
            "weights": [weights.get(name, none) for name in WEIGHTS],
            "heads": attention.heads,
            "eps": self.post_attention_layernorm.eps,
            "scale": attention.head_dim**-0.5,
        }


def run_layers(
    layers: Sequence[DraftLayer],
    x: Tensor,
    embedded: Embedded | None,
    norm: Tensor | None,
    angles: tuple[Tensor, Tensor],
    cached: CacheView,
) -> tuple[Tensor, Tensor]:
    """Run layers on the residual x (B, N, H) in few calls.

    Args:
        layers: layers that accept x according to :meth:`DraftLayer.fits`; layer i uses layer i of the cache.
        embedded: second input of EAGLE-3's layer.
        norm: weight (H,) of a final RMSNorm; None for no norm.
        angles: cosines and signed sines (B, N, D).
        cached: the cache; if its mask is an integer S', the last of the N tokens attends to all S' slots.

    Returns:
        the output and its RMSNorm, (B, N, H) each.
    """
    cache, slots, mask = cached
    if isinstance(mask, TreeMask):
        return _on_ops(layers, x, embedded, norm, angles, cached, mask)
    if isinstance(embedded, tuple):
        embedded = F.embedding(embedded[1], embedded[0])
    seen, view = (None, mask) if isinstance(mask, int) else (mask, mask.shape[-1])
    merged, count = layers[0].merged(), len(layers)
    if count > 1:
        merged = {**merged, "weights": [weight for layer in layers for weight in layer.merged()["weights"]]}
    normed, out = decoder_layers(
        x.flatten(0, 1),
        None if embedded is None else embedded.flatten(0, 1),
        norm=norm,
        angles=(*angles, *angles),
        seen=seen,
        near_seen=seen,
        view=view,
        keys=cache.k[:count],
        values=cache.v[:count],
        slots=slots,
        partners=None,
        kinds=(0,) * count,
        aux=(count - 1,),
        **merged,
    )
    return out.view_as(x), normed.view_as(x)


def _on_ops(
    layers: Sequence[DraftLayer],
    x: Tensor,
    embedded: Embedded | None,
    norm: Tensor | None,
    angles: tuple[Tensor, Tensor],
    cached: CacheView,
    mask: TreeMask,
) -> tuple[Tensor, Tensor]:
    """Run :func:`run_layers` on the ops, with each residual addition fused with the following norm."""
    shape, x = x.shape, x.flatten(0, 1)
    cache, slots = cached.cache, cached.slots.expand(shape[:2])
    change: Tensor | None = None
    for index, layer in enumerate(layers):
        merged = layer.merged()
        w = {name: weight for name, weight in zip(WEIGHTS, merged["weights"]) if weight.numel()}
        eps = merged["eps"]
        read: Tensor | None = None
        if "joined" in merged:
            assert embedded is not None
            table, ids = embedded if isinstance(embedded, tuple) else (embedded.flatten(0, 1), None)
            first, second = merged["joined"]
            read = join_norms(table, None if ids is None else ids.flatten(), x, first, second, eps)
            x = read[:, x.shape[1] :] if merged["normed_residual"] else x
        change, x = layer_on_ops(
            change,
            x,
            w,
            heads=merged["heads"],
            eps=eps,
            angles=angles,
            keys=cache.k_layers[index],
            values=cache.v_layers[index],
            slots=slots,
            attend=mask.attend,
            read=read,
        )
    if norm is None:
        x = x if change is None else x + change
        return x.view(shape), x.view(shape)
    normed, x = sum_and_norm(change, x, norm, eps)
    return x.view(shape), normed.view(shape)


def weight_state(weight: Tensor) -> tuple[int, int]:
    """Return a key that changes when the weight is moved or modified."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


class MidLayer(DraftLayer):
    """EAGLE-3's decoder layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.hidden_norm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.self_attn = Attention(config, 2 * size, qk_norm=config.qk_norm)
        self.mlp = MLP(size, config.intermediate_size)
        self.norm_before_residual = config.norm_before_residual

    def qkv(
        self, embedded: Tensor, g: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return q, k, v as in :meth:`Attention.qkv`, and the residual (B, T, H) for ``finish``."""
        x, normed = self._join(embedded, g)
        return *self.self_attn.qkv(x, cos, sin), normed if self.norm_before_residual else g

    def keys(self, embedded: Tensor, g: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return k and v of :meth:`qkv`."""
        return self.self_attn.keys(self._join(embedded, g)[0], cos, sin)

    def _join(self, embedded: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normed inputs, joined (B, T, 2H), and the second one."""
        normed = self.hidden_norm(g)
        return torch.cat([self.input_layernorm(embedded), normed], dim=-1), normed

    def _merge(self) -> dict[str, Any]:
        norms = self.input_layernorm.weight, self.hidden_norm.weight
        return super()._merge() | {"joined": norms, "normed_residual": self.norm_before_residual}


class PlainLayer(DraftLayer):
    """EAGLE-1's decoder layer, without a norm before the attention."""

    def __init__(self, config: LayerSizes) -> None:
        super().__init__()
        size = config.hidden_size
        self.self_attn = Attention(config, size)
        self.mlp = MLP(size, config.intermediate_size)
        self.post_attention_layernorm = RMSNorm(size, config.rms_norm_eps)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`Attention.qkv` of x (B, T, H)."""
        return self.self_attn.qkv(x, cos, sin)


class PreNormLayer(DraftLayer):
    """A Llama decoder layer, used for the second and later layers of a drafter.

    Parameter names are those of Transformers; ``config`` has the sizes and ``qk_norm``.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.self_attn = Attention(config, size, qk_norm=config.qk_norm)
        self.mlp = MLP(size, config.intermediate_size)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute :meth:`Attention.qkv` of the norm of x (B, T, H)."""
        return self.self_attn.qkv(self.input_layernorm(x), cos, sin)

    def _merge(self) -> dict[str, Any]:
        merged = super()._merge()
        merged["weights"][WEIGHTS.index("attention_norm")] = self.input_layernorm.weight
        return merged
