"""One decoder layer with fused projections, and RMSNorm."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.add_rms_norm import add_rms_norm
from ...ops.rope_store import rope_store
from ...ops.silu_mul import silu_mul
from ..kv_cache import KVCache, Sight, sight_attention
from ..rope import apply_rope
from .config import LeanConfig


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, statistics in fp32 (Zhang and Sennrich, 2019, eq. 4).

    Few calls, which is what a small norm costs on a CPU: ``vector_norm``, and ``eps`` as a 0-d fp32 tensor.
    """
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def activation(name: str, x: Tensor) -> Tensor:
    """``silu``, or ``relu2``: the square of ReLU (So et al., 2021)."""
    return F.silu(x) if name == "silu" else F.relu(x).square_()


class StepInputs(NamedTuple):
    """What all layers of one forward pass share.

    ``eps`` 0-d fp32; ``cos`` and ``sin`` (B, T, 1, D); ``slots`` (T,) or (B, T) that this pass writes; ``bias`` and
    ``window_bias`` (T, view) or (B, 1, T, view): 0 if visible, else the lowest finite number; or a ``Sight``.
    """

    eps: Tensor
    cos: Tensor
    sin: Tensor
    cache: KVCache
    slots: Tensor
    bias: Tensor | Sight
    window_bias: Tensor | Sight


def sum_and_norm(change: Tensor | None, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of ``x + change`` (None: of ``x``), and that sum; all (R, H)."""
    return add_rms_norm(x, None, weight, eps) if change is None else add_rms_norm(change, x, weight, eps)


def fits_ops(config: LeanConfig) -> bool:
    """Whether :meth:`LeanLayer.on_ops` computes this family: norms before the blocks, SwiGLU, no norms within."""
    family = config.family
    pre = family.norm_placement == "pre" and family.qk_norm in (None, "head")
    return pre and not family.sub_norms and config.hidden_act == "silu"


def frozen(tensor: Tensor) -> nn.Parameter:
    """A parameter over a tensor's memory that is never trained."""
    return nn.Parameter(tensor, requires_grad=False)


class LeanLayer(nn.Module):
    """A decoder layer; q, k, v are one matrix, gate and up another, to save calls on small models.

    Which parameters exist follows the family's traits. ``checkpoint_views`` fills them.
    """

    def __init__(self, config: LeanConfig, sliding: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config = config
        self.sliding = sliding
        hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        self.q_width, self.kv_width = config.num_heads * head, config.num_kv_heads * head
        self.qkv_widths = (self.q_width, self.kv_width, self.kv_width)
        self._window = config.sliding_window if sliding else None
        shapes: dict[str, tuple[int, ...]] = {
            "qkv": (sum(self.qkv_widths), hidden),
            "o": (hidden, self.q_width),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
            "attention_norm": (hidden,),
            "mlp_norm": (hidden,),
        }
        if config.qkv_bias:
            shapes["qkv_bias"] = (sum(self.qkv_widths),)
        if config.o_bias:
            shapes["o_bias"] = (hidden,)
        if config.mlp_bias:
            shapes |= {"gate_up_bias": (2 * inner,), "down_bias": (hidden,)}
        if config.family.qk_norm == "head":
            shapes["qk_norm"] = (config.num_heads + config.num_kv_heads, head)
        if config.family.qk_norm == "all":
            shapes |= {"q_norm": (self.q_width,), "k_norm": (self.kv_width,)}
        if config.family.sub_norms:
            shapes |= {"attention_sub_norm": (self.q_width,), "mlp_sub_norm": (inner,)}
        for name, shape in shapes.items():
            self.register_parameter(name, frozen(torch.empty(shape, dtype=dtype, device=device)))

    def checkpoint_views(self) -> dict[str, tuple[Tensor, ...]]:
        """Hugging Face tensor name (below ``model.layers.i.``) -> the parts of a parameter that it fills."""
        own = {name: parameter.data for name, parameter in self.named_parameters()}
        views: dict[str, tuple[Tensor, ...]] = {}
        fused = {
            "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), self.qkv_widths),
            "gate_up": (("mlp.gate_proj", "mlp.up_proj"), (self.config.intermediate_size,) * 2),
            "o": (("self_attn.o_proj",), (self.config.hidden_size,)),
            "down": (("mlp.down_proj",), (self.config.hidden_size,)),
        }
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            for name, (targets, widths) in fused.items():
                if name + end in own:
                    parts = own[name + end].split(widths)
                    views |= {f"{target}.{suffix}": (part,) for target, part in zip(targets, parts)}
        post = self.config.family.norm_placement == "post"
        norms = {
            "attention_norm": "post_attention_layernorm" if post else "input_layernorm",
            "mlp_norm": "post_feedforward_layernorm" if post else "post_attention_layernorm",
            "q_norm": "self_attn.q_norm",
            "k_norm": "self_attn.k_norm",
            "attention_sub_norm": "self_attn.attn_sub_norm",
            "mlp_sub_norm": "mlp.ffn_sub_norm",
        }
        views |= {f"{target}.weight": (own[name],) for name, target in norms.items() if name in own}
        if "qk_norm" in own:
            # Repeated for every head at load, so that one normalisation serves queries and keys.
            rows = own["qk_norm"].unbind(0)
            views["self_attn.q_norm.weight"] = rows[: self.config.num_heads]
            views["self_attn.k_norm.weight"] = rows[self.config.num_heads :]
        return views

    def _tensors(self) -> dict[str, Tensor]:
        """The parameters by name; a module's attribute look-up costs more than a small addition."""
        return cast("dict[str, Tensor]", self._parameters)

    def forward(self, x: Tensor, index: int, step: StepInputs) -> Tensor:
        """(B * T, H) residual stream in -> out; writes layer ``index`` of the cache."""
        w, eps = self._tensors(), step.eps
        if self.config.family.norm_placement == "pre":
            x = x + self._attend(rms_norm(x, w["attention_norm"], eps), index, step)
            return x + self._mlp(rms_norm(x, w["mlp_norm"], eps), eps)
        x = x + rms_norm(self._attend(x, index, step), w["attention_norm"], eps)
        return x + rms_norm(self._mlp(x, eps), w["mlp_norm"], eps)

    def on_ops(
        self, change: Tensor | None, x: Tensor, index: int, step: StepInputs, sight: Sight
    ) -> tuple[Tensor, Tensor]:
        """:meth:`forward` in few kernels, for the families of :func:`fits_ops`.

        Args:
            change: (B * T, H) what the block before adds to the residual stream ``x``; None if that is done.

        Returns:
            what this layer's MLP adds to the residual stream, and the stream without it.
        """
        config, w, eps, cache = self.config, self._tensors(), self.config.rms_norm_eps, step.cache
        normed, x = sum_and_norm(change, x, w["attention_norm"], eps)
        qkv = F.linear(normed, w["qkv"], w.get("qkv_bias")).view(*step.slots.shape, -1)
        keys, values = cache.k_layers[index], cache.v_layers[index]
        cos, sin, norm = step.cos.squeeze(2), step.sin.squeeze(2), w.get("qk_norm")  # (B, T, D)
        q = rope_store(qkv, cos, sin, keys, values, step.slots, heads=config.num_heads, qk_norm=norm, eps=eps)
        attended = sight_attention(q, keys, values, sight, self._window).flatten(0, 1).flatten(1)
        attended = F.linear(attended, w["o"], w.get("o_bias"))
        normed, x = add_rms_norm(attended, x, w["mlp_norm"], eps)
        inner = silu_mul(F.linear(normed, w["gate_up"], w.get("gate_up_bias")))
        return F.linear(inner, w["down"], w.get("down_bias")), x

    def _attend(self, x: Tensor, index: int, step: StepInputs) -> Tensor:
        config, w, eps = self.config, self._tensors(), step.eps
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        batch, length = step.cos.shape[:2]
        qkv = F.linear(x, w["qkv"], w.get("qkv_bias"))
        qk, v = qkv.split((self.q_width + self.kv_width, self.kv_width), -1)
        if config.family.qk_norm == "all":
            q, k = qk.split((self.q_width, self.kv_width), -1)
            qk = torch.cat((rms_norm(q, w["q_norm"], eps), rms_norm(k, w["k_norm"], eps)), -1)
        qk = qk.view(batch, length, heads + kv_heads, head_dim)
        if config.family.qk_norm == "head":
            qk = rms_norm(qk, w["qk_norm"], eps)
        q, k = apply_rope(qk, step.cos, step.sin).transpose(1, 2).split((heads, kv_heads), 1)
        v = v.view(batch, length, kv_heads, head_dim).transpose(1, 2)
        keys, values = step.cache.write(index, k, v, step.slots)
        bias = step.window_bias if self.sliding else step.bias
        if isinstance(bias, Sight):
            out = sight_attention(q.transpose(1, 2), keys, values, bias, self._window)
        else:
            view = bias.shape[-1]
            out = F.scaled_dot_product_attention(
                q, keys[:, :, :view], values[:, :, :view], attn_mask=bias, enable_gqa=heads != kv_heads
            ).transpose(1, 2)
        out = out.reshape(batch * length, self.q_width)
        if config.family.sub_norms:
            out = rms_norm(out, w["attention_sub_norm"], eps)
        return F.linear(out, w["o"], w.get("o_bias"))

    def _mlp(self, x: Tensor, eps: Tensor) -> Tensor:
        config, w = self.config, self._tensors()
        gate, up = F.linear(x, w["gate_up"], w.get("gate_up_bias")).chunk(2, -1)
        inner = activation(config.hidden_act, gate).mul_(up)
        if config.family.sub_norms:
            inner = rms_norm(inner, w["mlp_sub_norm"], eps)
        return F.linear(inner, w["down"], w.get("down_bias"))
