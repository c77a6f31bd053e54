"""Decoder layers for few rows on a CPU in one call; call overhead dominates small forward passes there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .backend import Op

# Weights of a layer in this order; an empty tensor if the layer has none. Matrices are (outputs, inputs).
WEIGHTS = (
    "attention_norm",
    "qkv",  # rows of queries, keys, values
    "qkv_bias",
    "q_norm",  # over all heads together
    "k_norm",
    "qk_norm",  # or per head: (Hq + Hkv, D)
    "sinks",
    "attention_sub_norm",
    "o",
    "o_bias",
    "attention_out_norm",
    "mlp_norm",
    "gate_up",  # gate rows, then up rows
    "gate_up_bias",
    "mlp_sub_norm",
    "down",
    "down_bias",
    "mlp_out_norm",
)
ACTIVATIONS = ("silu", "relu2", "gelu_tanh")  # applied to the gates


def decoder_layers_reference(
    x: Tensor,
    fed: Tensor | None,
    joined: Sequence[Tensor],
    normed_residual: bool,
    weights: Sequence[Tensor],
    norm: Tensor | None,
    angles: Sequence[Tensor],
    seen: Tensor | None,
    near_seen: Tensor | None,
    view: int,
    partners: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    kinds: Sequence[int],
    aux: Sequence[int],
    heads: int,
    activation: int,
    eps: float,
    scale: float,
    residual_scale: float,
    one_plus: bool,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`decoder_layers` in PyTorch."""
    _, batch, kv_heads, _, size = keys.shape
    q_width, kv_width = heads * size, kv_heads * size
    if partners is None:
        partners = torch.arange(size, device=x.device).roll(size // 2)
    rows = torch.arange(batch, device=x.device)[:, None]
    slots = slots.expand(batch, -1)
    outputs: list[Tensor] = []

    def normed(y: Tensor, weight: Tensor, plus: bool = one_plus) -> Tensor:
        scaled = y * (y.square().mean(-1, keepdim=True) + eps).rsqrt()
        return scaled * (1 + weight) if plus else scaled * weight

    def product(y: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return F.linear(y, w.to(y.dtype), bias if bias.numel() else None)

    for layer, kind in enumerate(kinds):
        w = dict(zip(WEIGHTS, weights[layer * len(WEIGHTS) :][: len(WEIGHTS)]))
        has = {name for name, weight in w.items() if weight.numel()}
        y = x
        if layer == 0 and fed is not None and joined:
            beside = normed(x, joined[1], False)
            y = torch.cat((normed(fed, joined[0], False), beside), -1)
            x = beside if normed_residual else x
        elif layer == 0 and fed is not None:
            y = fed
        elif "attention_norm" in has:
            y = normed(x, w["attention_norm"])
        qk, v = product(y, w["qkv"], w["qkv_bias"]).split((q_width + kv_width, kv_width), -1)
        if "q_norm" in has:
            q, k = qk.split((q_width, kv_width), -1)
            qk = torch.cat((normed(q, w["q_norm"]), normed(k, w["k_norm"])), -1)
        qk = qk.view(batch, -1, heads + kv_heads, size)
        if "qk_norm" in has:
            qk = normed(qk, w["qk_norm"].view(-1, size))
        if not kind & 2:
            cos, sin = (table.view(batch, -1, 1, size) for table in angles[2 * (kind & 1) :][:2])
            qk = qk * cos + qk[..., partners] * sin
        q, k = qk.split((heads, kv_heads), 2)
        keys[layer][rows, :, slots] = k
        values[layer][rows, :, slots] = v.view(batch, -1, kv_heads, size)
        allowed = near_seen if kind & 1 else seen
        grouped = q.view(batch, -1, kv_heads, heads // kv_heads, size)
        scores = grouped.permute(0, 2, 3, 1, 4)  # (B, kv, g, T, D)
        scores = scores @ keys[layer, :, :, None, :view].transpose(-1, -2) * scale
        if allowed is None:  # causal; the last token attends to all slots
            allowed = torch.ones(scores.shape[3:], dtype=torch.bool, device=x.device)
            allowed = allowed.tril(view - scores.shape[3])
        mask = allowed if allowed.dim() == 2 else allowed[:, None, None]
        scores = scores.masked_fill(~mask, -torch.inf)
        if "sinks" in has:
            sink = w["sinks"].view(1, kv_heads, -1, 1, 1).expand(batch, -1, -1, scores.shape[3], 1)
            scores = torch.cat((scores, sink), -1)
        shares = scores.softmax(-1)[..., :view].nan_to_num(0.0)  # 0 for a token that attends to no slot
        y = (shares @ values[layer, :, :, None, :view].nan_to_num(0.0)).permute(0, 3, 1, 2, 4)
        y = y.reshape(-1, q_width)
        if "attention_sub_norm" in has:
            y = normed(y, w["attention_sub_norm"], False)
        y = product(y, w["o"], w["o_bias"])
        x = x + residual_scale * (normed(y, w["attention_out_norm"]) if "attention_out_norm" in has else y)
        y = normed(x, w["mlp_norm"]) if "mlp_norm" in has else x
        gate, up = product(y, w["gate_up"], w["gate_up_bias"]).chunk(2, -1)
        y = (F.silu(gate), F.relu(gate).square(), F.gelu(gate, approximate="tanh"))[activation] * up
        if "mlp_sub_norm" in has:
            y = normed(y, w["mlp_sub_norm"], False)
        y = product(y, w["down"], w["down_bias"])
        x = x + residual_scale * (normed(y, w["mlp_out_norm"]) if "mlp_out_norm" in has else y)
        outputs.append(x)
    aux_outputs = torch.cat([outputs[layer] for layer in aux], -1) if aux else x[:, :0].clone()
    return x.clone() if norm is None else normed(x, norm), aux_outputs


_OP = Op("decoder_layers", decoder_layers_reference, frozenset({torch.float32}), host=True)


def runs_layers(x: Tensor) -> bool:
    """Return whether the compiled op is available for such an x."""
    return _OP.compiled(x) is not None


def decoder_layers(
    x: Tensor,
    fed: Tensor | None = None,
    *,
    weights: Sequence[Tensor],
    norm: Tensor | None,
    angles: Sequence[Tensor],
    joined: Sequence[Tensor] = (),
    normed_residual: bool = False,
    seen: Tensor | None,
    near_seen: Tensor | None,
    view: int,
    partners: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    kinds: Sequence[int],
    aux: Sequence[int] = (),
    heads: int,
    activation: str = "silu",
    eps: float,
    scale: float,
    residual_scale: float = 1.0,
    one_plus: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run T tokens of B sequences through L decoder layers with dense MLPs and write their keys and values.

    A token's output does not depend on the number of rows: the summation order is always the same.

    Source: Vaswani et al., 2017, equation 1; RoFormer (Su et al., 2021), equation 34; RMSNorm (Zhang and
    Sennrich, 2019), equation 4; SwiGLU (Shazeer, 2020), equation 5.

    Args:
        x: (B * T, H) residual stream; fp32 like all floating-point tensors here but the matrices.
        fed: (B * T, K) input of the first layer's query, key and value projections; None: the norm of x.
        joined: two norm weights (H,). If given, the first layer reads the concatenation of the normalised
            ``fed`` (B * T, H) and the normalised x.
        normed_residual: with ``joined``, use the normalised x as the residual stream.
        weights: tensors of ``WEIGHTS``, layer by layer. The matrices are in fp32, or all in bf16: they are
            converted as they are read.
        norm: (H,) weight of the norm after the last layer, or None.
        angles: cosines and signed sines (B, T, D) for full-attention layers, then for sliding-window layers.
        seen: bool (T, view) or (B, T, view): which of the first ``view`` slots each token attends to. None: causal,
            the last token attends to all of them.
        near_seen: same as ``seen``, for sliding-window layers.
        partners: (D,) partner dimension of each dimension in the rotation; None: rotate-half.
        keys: (L, B, Hkv, S, D) with contiguous slots; written in place.
        values: same as ``keys``.
        slots: (T,) or (B, T) int64 destination slots of the tokens, each below S.
        kinds: per layer: 0 default, 1 sliding window, 2 no rotation, 3 both.
        aux: layers whose outputs are returned.
        activation: one of ``ACTIVATIONS``.
        residual_scale: factor of each block's output.
        one_plus: norms multiply by ``1 + weight``, except the norms inside blocks.

    Returns:
        (B * T, H) after the norm, and (B * T, len(aux) * H).
    """
    numbers = ACTIVATIONS.index(activation), eps, scale, residual_scale, one_plus
    masks = _whole(seen), _whole(near_seen), view
    cache = partners, keys, values, slots.contiguous(), kinds, aux, heads
    parts = x.contiguous(), _whole(fed), joined, normed_residual, weights, norm, angles
    result: tuple[Tensor, Tensor] = _OP(backend, *parts, *masks, *cache, *numbers)
    return result


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
