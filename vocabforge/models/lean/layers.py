"""One decoder layer with fused projections, and RMSNorm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.add_rms_norm import add_rms_norm
from ...ops.rope_store import rope_store
from ...ops.silu_mul import silu_mul
from ..kv_cache import KVCache, Mask, TreeMask
from ..rope import apply_rope
from .config import BEFORE, ExpertTraits, LeanConfig


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Compute x / sqrt(mean(x^2) + eps) * weight over the last dimension, with fp32 statistics.

    The call count dominates the cost of a small norm on a CPU, hence ``vector_norm`` and ``eps`` as a 0-d
    fp32 tensor. Source: Zhang and Sennrich, 2019, equation 4.
    """
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def one_plus_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """Compute :func:`rms_norm` with 1 + weight as the factor, rounded once at the end as in Gemma."""
    wide = x.float()
    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt_()
    return torch.addcmul(wide, wide, weight.float()).to(x.dtype)


def activation(name: str, x: Tensor) -> Tensor:
    """Apply ``silu``, ``gelu_tanh`` or ``relu2``, the square of ReLU (So et al., 2021)."""
    if name == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh") if name == "gelu_tanh" else F.relu(x).square_()


class StepInputs(NamedTuple):
    """Inputs shared by all layers of a forward pass.

    Attributes:
        eps: 0-d fp32.
        cos, sin: (B, T, 1, D).
        near_cos, near_sin: those of the sliding layers.
        partners: (D,) for pairs other than rotate-half's.
        slots: (T,) or (B, T) slots that the pass writes.
        bias, window_bias: (T, view) or (B, 1, T, view), 0 if visible, else the lowest finite number; or a
            ``TreeMask``; or ``view`` if a single token attends to all of these slots.
    """

    eps: Tensor
    cos: Tensor
    sin: Tensor
    near_cos: Tensor
    near_sin: Tensor
    partners: Tensor | None
    cache: KVCache
    slots: Tensor
    bias: Mask
    window_bias: Mask


def sum_and_norm(change: Tensor | None, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the RMSNorm of ``x + change`` (of ``x`` if None) and the sum itself; all (R, H)."""
    return add_rms_norm(x, None, weight, eps) if change is None else add_rms_norm(change, x, weight, eps)


def layer_on_ops(
    change: Tensor | None,
    x: Tensor,
    w: Mapping[str, Tensor],
    *,
    heads: int,
    eps: float,
    angles: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    attend: Callable[..., Tensor],
    read: Tensor | None = None,
    experts: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a pre-norm layer in seven kernels; the first norm adds ``change``.

    Args:
        change: (B * T, H) pending output of the previous layer, to be added to the residual stream ``x``
            (B * T, H); None if it is already added.
        w: weights of a :class:`LeanLayer`; without ``attention_norm``, q, k and v are computed from x itself.
        angles, keys, values, slots: arguments of ``rope_store``.
        attend: maps rotated queries (B, T, h, D), ``keys`` and ``values`` to (B, T, h, D).
        read: (B * T, any) input of q, k and v instead of the norm of x.
        experts: the MLP, if it is not SwiGLU.

    Returns:
        the MLP's pending output, and the residual stream.
    """
    norm = w.get("attention_norm")
    if read is not None or norm is None:
        x, change = x if change is None else x + change, None
    if read is None:
        read, x = (x, x) if norm is None else sum_and_norm(change, x, norm, eps)
    qkv = F.linear(read, w["qkv"], w.get("qkv_bias")).view(*slots.shape, -1)
    q = rope_store(qkv, *angles, keys, values, slots, heads=heads, qk_norm=w.get("qk_norm"), eps=eps)
    attended = attend(q, keys, values).flatten(0, 1).flatten(1)
    normed, x = add_rms_norm(F.linear(attended, w["o"], w.get("o_bias")), x, w["mlp_norm"], eps)
    if experts is not None:
        return experts(normed), x
    inner = silu_mul(F.linear(normed, w["gate_up"], w.get("gate_up_bias")))
    return F.linear(inner, w["down"], w.get("down_bias")), x


def fits_ops(config: LeanConfig) -> bool:
    """Return whether :meth:`LeanLayer.on_ops` supports this family.

    It requires pre-norm blocks without inner norms, SwiGLU or experts, one rotate-half RoPE in all layers, no
    sinks and no scaling of the blocks' outputs.
    """
    family = config.family
    norms = family.norms == BEFORE and family.qk_norm in (None, "head") and not family.sub_norms
    rope = all(config.rotated_layers) and family.rope in ("halves", "some")
    plain = not family.one_plus and not family.sinks and config.residual_scale == 1.0
    return norms and rope and plain and config.hidden_act == "silu"


MATRICES = ("qkv", "o", "gate_up", "down")


def product(x: Tensor, w: Mapping[str, Tensor], name: str) -> Tensor:
    """Multiply by a matrix of a layer, which may be stored in another dtype than x, and add its bias."""
    return F.linear(x, widened(w[name], x.dtype), w.get(f"{name}_bias"))


class _Scratch(threading.local):
    """Memory of a thread; fresh memory for each large matrix would cost more than its conversion."""

    memory = torch.empty(0)


_scratch = _Scratch()


def widened(w: Tensor, dtype: torch.dtype) -> Tensor:
    """Return w in another dtype, in memory that this thread's next call reuses."""
    if w.dtype == dtype:
        return w
    if _scratch.memory.numel() < w.numel():
        with torch.inference_mode(False):
            _scratch.memory = torch.empty(w.numel(), dtype=dtype)
    return _scratch.memory[: w.numel()].view(w.shape).copy_(w)


def frozen(tensor: Tensor) -> nn.Parameter:
    """Wrap a tensor in a parameter that is never trained and shares its memory."""
    return nn.Parameter(tensor, requires_grad=False)


class LeanLayer(nn.Module):
    """A decoder layer with fused q, k, v and gate, up matrices, which saves calls on small models.

    The family's traits determine which parameters exist; they are filled through ``checkpoint_views``.
    """

    def __init__(
        self, config: LeanConfig, index: int, dtype: torch.dtype, device: torch.device, matrices: torch.dtype
    ) -> None:
        super().__init__()
        self.config = config
        self.sliding = config.sliding_layers[index]
        self.rotated = config.rotated_layers[index]
        self.experts = config.family.experts if config.expert_layers[index] else None
        hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
        self.q_width, self.kv_width = config.num_heads * head, config.num_kv_heads * head
        self.qkv_widths = (self.q_width, self.kv_width, self.kv_width)
        self._window = config.sliding_window if self.sliding else None
        self._norm = one_plus_norm if config.family.one_plus else rms_norm
        self._sinks = config.family.sinks
        self._plain = config.family.norms == BEFORE and config.residual_scale == 1.0
        shapes: dict[str, tuple[int, ...]] = {
            "qkv": (sum(self.qkv_widths), hidden),
            "o": (hidden, self.q_width),
        }
        if self.experts is None:
            shapes |= {"gate_up": (2 * inner, hidden), "down": (hidden, inner)}
        else:
            shapes |= self._expert_shapes(self.experts.clamped)
        shapes |= {name: (hidden,) for name, target in self._block_norms().items() if target is not None}
        if config.qkv_bias:
            shapes["qkv_bias"] = (sum(self.qkv_widths),)
        if config.o_bias:
            shapes["o_bias"] = (hidden,)
        if config.mlp_bias:
            shapes |= {"gate_up_bias": (2 * inner,), "down_bias": (hidden,)}
        if config.family.sinks:
            shapes["sinks"] = (config.num_heads,)
        if config.family.qk_norm == "head":
            shapes["qk_norm"] = (config.num_heads + config.num_kv_heads, head)
        if config.family.qk_norm == "all":
            shapes |= {"q_norm": (self.q_width,), "k_norm": (self.kv_width,)}
        if config.family.sub_norms:
            shapes |= {"attention_sub_norm": (self.q_width,), "mlp_sub_norm": (inner,)}
        for name, shape in shapes.items():
            own = matrices if name in MATRICES else dtype
            self.register_parameter(name, frozen(torch.empty(shape, dtype=own, device=device)))

    def _block_norms(self) -> dict[str, str | None]:
        names = ("attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm")
        return dict(zip(names, self.config.family.norms))

    def _expert_shapes(self, clamped: bool) -> dict[str, tuple[int, ...]]:
        c = self.config
        count, hidden, inner = c.num_experts, c.hidden_size, c.expert_size
        shapes: dict[str, tuple[int, ...]] = {"router": (count, hidden)}
        if not clamped:
            return shapes | {"experts_in": (count, 2 * inner, hidden), "experts_out": (count, hidden, inner)}
        shapes |= {"router_bias": (count,), "experts_in": (count, hidden, 2 * inner)}
        shapes |= {"experts_in_bias": (count, 2 * inner), "experts_out": (count, inner, hidden)}
        return shapes | {"experts_out_bias": (count, hidden)}

    def checkpoint_views(self, loaded: bool = False) -> dict[str, tuple[Tensor, ...]]:
        """Map each Hugging Face tensor name (below ``model.layers.i.``) to the parameter views that it fills.

        Args:
            loaded: use the names in a loaded Transformers model, where separately stored experts are merged.
        """
        own = {name: parameter.data for name, parameter in self.named_parameters()}
        views: dict[str, tuple[Tensor, ...]] = {}
        gate_up: tuple[tuple[str, ...], tuple[int, ...]] = (
            ("mlp.gate_proj", "mlp.up_proj"),
            (self.config.intermediate_size,) * 2,
        )
        if self.config.family.fused_gate_up:
            gate_up = (("mlp.gate_up_proj",), (2 * self.config.intermediate_size,))
        fused: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
            "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), self.qkv_widths),
            "gate_up": gate_up,
            "o": (("self_attn.o_proj",), (self.config.hidden_size,)),
            "down": (("mlp.down_proj",), (self.config.hidden_size,)),
        }
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            for name, (targets, widths) in fused.items():
                if name + end in own:
                    parts = own[name + end].split(widths)
                    views |= {f"{target}.{suffix}": (part,) for target, part in zip(targets, parts)}
        norms = self._block_norms() | {
            "q_norm": "self_attn.q_norm",
            "k_norm": "self_attn.k_norm",
            "attention_sub_norm": "self_attn.attn_sub_norm",
            "mlp_sub_norm": "mlp.ffn_sub_norm",
        }
        views |= {f"{target}.weight": (own[name],) for name, target in norms.items() if name in own}
        if "qk_norm" in own:
            # Repeated for every head at load time, so that queries and keys are normalised in one call.
            rows = own["qk_norm"].unbind(0)
            views["self_attn.q_norm.weight"] = rows[: self.config.num_heads]
            views["self_attn.k_norm.weight"] = rows[self.config.num_heads :]
        if "sinks" in own:
            views["self_attn.sinks"] = (own["sinks"],)
        if self.experts is not None:
            views |= self._expert_views(self.experts, own, loaded)
        return views

    def _expert_views(
        self, experts: ExpertTraits, own: dict[str, Tensor], loaded: bool
    ) -> dict[str, tuple[Tensor, ...]]:
        router = experts.router if loaded else experts.stored_router or experts.router
        views: dict[str, tuple[Tensor, ...]] = {f"{router}.weight": (own["router"],)}
        if "router_bias" in own:
            views[f"{router}.bias"] = (own["router_bias"],)
        if loaded or experts.stored is None:
            names = {"experts_in": "gate_up_proj", "experts_out": "down_proj"}
            names |= {f"{name}_bias": f"{target}_bias" for name, target in names.items()}
            return views | {f"mlp.experts.{names[name]}": (own[name],) for name in names if name in own}
        folder, gate, up, down = experts.stored
        for index, (wide, narrow) in enumerate(zip(own["experts_in"], own["experts_out"])):
            parts = dict(zip((gate, up), wide.chunk(2))) | {down: narrow}
            views |= {f"{folder}.{index}.{name}.weight": (part,) for name, part in parts.items()}
        return views

    def _tensors(self) -> dict[str, Tensor]:
        """Return the parameters by name; attribute access on a module costs more than a small addition."""
        return cast("dict[str, Tensor]", self._parameters)

    def forward(self, x: Tensor, index: int, step: StepInputs) -> Tensor:
        """Update the residual stream (B * T, H) and write layer ``index`` of the cache."""
        w, eps, norm = self._tensors(), step.eps, self._norm
        if self._plain:
            x = x + self._attend(norm(x, w["attention_norm"], eps), index, step)
            return x + self._mlp(norm(x, w["mlp_norm"], eps), eps)
        scale = self.config.residual_scale
        for block in ("attention", "mlp"):
            before, after = w.get(f"{block}_norm"), w.get(f"{block}_out_norm")
            y = x if before is None else norm(x, before, eps)
            y = self._attend(y, index, step) if block == "attention" else self._mlp(y, eps)
            if after is not None:
                y = norm(y, after, eps)
            x = x + (y if scale == 1.0 else y * scale)
        return x

    def on_ops(
        self, change: Tensor | None, x: Tensor, index: int, step: StepInputs, mask: TreeMask
    ) -> tuple[Tensor | None, Tensor]:
        """Run :meth:`forward` in few kernels, for the families that :func:`fits_ops` accepts.

        Args:
            change: (B * T, H) pending output of the previous block, to be added to the residual stream ``x``;
                None if it is already added.

        Returns:
            see :func:`layer_on_ops`.
        """
        config, cache = self.config, step.cache
        return layer_on_ops(
            change,
            x,
            self._tensors(),
            heads=config.num_heads,
            eps=config.rms_norm_eps,
            angles=(step.cos.squeeze(2), step.sin.squeeze(2)),
            keys=cache.k_layers[index],
            values=cache.v_layers[index],
            slots=step.slots,
            attend=partial(mask.attend, own=self._window, scale=config.attention_scale),
            experts=None
            if self.experts is None
            else partial(self._pass_experts, clamped=self.experts.clamped),
        )

    def _attend(self, x: Tensor, index: int, step: StepInputs) -> Tensor:
        config, w, eps = self.config, self._tensors(), step.eps
        heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        batch, length = step.cos.shape[:2]
        qkv = product(x, w, "qkv")
        qk, v = qkv.split((self.q_width + self.kv_width, self.kv_width), -1)
        if config.family.qk_norm == "all":
            q, k = qk.split((self.q_width, self.kv_width), -1)
            qk = torch.cat((self._norm(q, w["q_norm"], eps), self._norm(k, w["k_norm"], eps)), -1)
        qk = qk.view(batch, length, heads + kv_heads, head_dim)
        if config.family.qk_norm == "head":
            qk = self._norm(qk, w["qk_norm"], eps)
        if self.rotated:
            cos, sin = (step.near_cos, step.near_sin) if self.sliding else (step.cos, step.sin)
            qk = apply_rope(qk, cos, sin, step.partners)
        q, k = qk.transpose(1, 2).split((heads, kv_heads), 1)
        v = v.view(batch, length, kv_heads, head_dim).transpose(1, 2)
        keys, values = step.cache.write(index, k, v, step.slots)
        bias, scale = step.window_bias if self.sliding else step.bias, config.attention_scale
        if self._sinks:
            out = sink_attention(q, keys, values, bias, w["sinks"], self._window, scale)
        elif isinstance(bias, TreeMask):
            out = bias.attend(q.transpose(1, 2), keys, values, self._window, scale)
        else:
            view = bias if isinstance(bias, int) else bias.shape[-1]
            out = F.scaled_dot_product_attention(
                q,
                keys[:, :, :view],
                values[:, :, :view],
                attn_mask=None if isinstance(bias, int) else bias,
                scale=scale,
                enable_gqa=heads != kv_heads,
            ).transpose(1, 2)
        out = out.reshape(batch * length, self.q_width)
        if config.family.sub_norms:
            out = rms_norm(out, w["attention_sub_norm"], eps)
        return product(out, w, "o")

    def _mlp(self, x: Tensor, eps: Tensor) -> Tensor:
        if self.experts is not None:
            return self._pass_experts(x, self.experts.clamped)
        config, w = self.config, self._tensors()
        gate, up = product(x, w, "gate_up").chunk(2, -1)
        inner = activation(config.hidden_act, gate).mul_(up)
        if config.family.sub_norms:
            inner = rms_norm(inner, w["mlp_sub_norm"], eps)
        return product(inner, w, "down")

    def _pass_experts(self, x: Tensor, clamped: bool) -> Tensor:
        """Apply each token's experts and sum their weighted outputs: (R, H) -> (R, H).

        Rows are sorted by expert, and no shape depends on the routing. Source: Switch Transformers (Fedus et
        al., 2021), equations 1 and 2, with the experts of the k highest logits.
        """
        config, w, count = self.config, self._tensors(), self.config.experts_per_token
        scores = F.linear(x, w["router"], w.get("router_bias")).float()
        if not config.normed_experts:
            scores = scores.softmax(-1)
        weights, chosen = scores.topk(count, -1)  # (R, k)
        weights = (weights.softmax(-1) if config.normed_experts else weights).to(x.dtype)
        experts, order = chosen.flatten().sort()
        ends = torch.searchsorted(
            experts, torch.arange(config.num_experts, device=x.device), right=True, out_int32=True
        )
        rows, wide, narrow = x[order // count], w["experts_in"], w["experts_out"]
        if clamped:
            inner = F.grouped_mm(rows, wide, offs=ends) + w["experts_in_bias"][experts]
            gate = inner[:, ::2].clamp(max=config.swiglu_limit)
            up = inner[:, 1::2].clamp(-config.swiglu_limit, config.swiglu_limit)
            inner = (up + 1) * (gate * torch.sigmoid(gate * config.swiglu_alpha))
            out = F.grouped_mm(inner, narrow, offs=ends) + w["experts_out_bias"][experts]
        else:
            gate, up = F.grouped_mm(rows, wide.transpose(1, 2), offs=ends).chunk(2, -1)
            inner = activation(config.hidden_act, gate).mul_(up)
            out = F.grouped_mm(inner, narrow.transpose(1, 2), offs=ends)
        out = torch.empty_like(out).index_copy_(0, order, out).unflatten(0, (-1, count))  # (R, k, H)
        return (out * weights[..., None]).sum(1)


def sink_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Mask,
    sinks: Tensor,
    window: int | None,
    scale: float | None,
) -> Tensor:
    """Compute attention whose softmax has an extra logit per head without a value: (B, T, h, D).

    Args:
        q: (B, h, T, D); keys, values: (B, kv, S, D).
        seen: additive mask (T, view) or (B, 1, T, view), a ``TreeMask``, or ``view`` if all slots are visible.
        sinks: (h,) extra logits.

    Source: gpt-oss's model card (OpenAI, 2025).
    """
    if isinstance(seen, TreeMask):
        seen = seen.bias(keys.shape[2], window, q.dtype)
    (batch, heads, count, size), kv_heads = q.shape, keys.shape[1]
    view = seen if isinstance(seen, int) else seen.shape[-1]
    grouped = q.reshape(batch, kv_heads, -1, size)  # (B, kv, group * T, D)
    scores = (grouped @ keys[:, :, :view].transpose(2, 3)).view(batch, heads, count, view)
    scores = scores * (size**-0.5 if scale is None else scale)
    scores = scores if isinstance(seen, int) else scores + seen
    sink = sinks.view(1, -1, 1, 1).expand(batch, -1, count, 1)
    weights = torch.cat((scores, sink), -1).softmax(-1, dtype=torch.float32)[..., :-1].to(q.dtype)
    out = weights.reshape(batch, kv_heads, -1, view) @ values[:, :, :view]
    return out.view(batch, heads, count, size).transpose(1, 2)
