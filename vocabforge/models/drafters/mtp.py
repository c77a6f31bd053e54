"""The MTP drafter: a target's multi-token-prediction module, applied repeatedly to draft several tokens.

DeepSeek-V3 (arXiv 2412.19437, equations 21-23), with one module for all steps (FastMTP, arXiv 2509.18362)::

    h^{k+1}_t = layer(W [norm_e(e(x_{t+1+k})) ; norm_h(h^k_t)]),    draft = head(norm(h^{k+1}_t))

h^0_t is the target's hidden state after its final norm. The input of later steps is norm(h), or h itself in
some families. The decoder layer is the family's (:mod:`.mtp_families`); a new module for a target without one
uses Llama's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...ops.few_rows import linear
from ..kv_cache import CacheView
from ..target.text_config import text_config
from ..ttt.attention import TTTState, ttt_attention
from . import parts
from .eagle_layers import PreNormLayer, RMSNorm
from .interface import CachedDrafter
from .mtp_families import FAMILIES, Attend, layer_config, make_layer, rotary_tables, run_layer
from .parts import RotaryPositions


@dataclass(frozen=True)
class MtpConfig(parts.LayerSizes):
    """Sizes of an MTP module.

    Attributes:
        num_kv_heads, head_dim: sizes of the cached keys; latent attention caches them expanded.
        rope, qk_norm: settings of Llama's layer; not used for a family's layer.
        family: key of ``FAMILIES``; None for Llama's layer.
        layer: the target's text configuration, from which the family's layer is built.
        post_norm: the next step's input state is taken after the final norm.
    """

    kind: ClassVar[str] = "mtp"
    num_layers: ClassVar[int] = 1
    aux_layers: ClassVar[tuple[int, ...]] = ()  # uses the final hidden states

    qk_norm: bool = False
    family: str | None = None
    layer: dict[str, Any] | None = None
    post_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.family is not None and (self.family not in FAMILIES or not isinstance(self.layer, Mapping)):
            raise ConfigError(
                "the drafter's configuration has no supported model family",
                got=f"family {self.family!r}, layer {type(self.layer).__name__}",
                expected=f"a configuration of {', '.join(FAMILIES)}",
            )

    @classmethod
    def of_family(cls, layer: Mapping[str, Any]) -> MtpConfig:
        """Return the sizes of the module of a target with this text configuration.

        Raises:
            ConfigError: the family or its layer is not supported.
        """
        text = text_config(layer)
        family = text.model_type
        latent = getattr(text, "kv_lora_rank", None)
        heads = int(text.num_attention_heads)
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
        if latent:
            head_dim = max(text.qk_nope_head_dim + text.qk_rope_head_dim, text.v_head_dim)
        return cls(
            hidden_size=int(text.hidden_size),
            intermediate_size=int(text.intermediate_size),
            num_heads=heads,
            num_kv_heads=heads if latent else int(text.num_key_value_heads),
            head_dim=int(head_dim),
            vocab_size=int(text.vocab_size),
            draft_vocab_size=None,
            max_position_embeddings=int(text.max_position_embeddings),
            rms_norm_eps=float(text.rms_norm_eps),
            family=family,
            layer=dict(layer),
            post_norm=family not in FAMILIES or FAMILIES[family].post_norm,
        )


class MtpDrafter(RotaryPositions, CachedDrafter):
    """An MTP module over a frozen target; see :class:`.interface.Drafter`."""

    kind: str = "mtp"
    label = "MTP"
    sizes_type = MtpConfig
    reads: Literal["aux", "hidden"] = "hidden"
    config: MtpConfig

    def __init__(
        self, config: MtpConfig, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        size, norm = config.hidden_size, RMSNorm
        self._family = None if config.family is None else FAMILIES[config.family]
        if config.family is None or self._family is None:
            self.layer: nn.Module = PreNormLayer(config)
        else:
            assert config.layer is not None
            self._layer_config = layer_config(config.family, config.layer)
            self.layer = make_layer(config.family, self._layer_config)
            norm = self._family.class_of(self._family.norm)
        self.token_norm = norm(size, config.rms_norm_eps)
        self.state_norm = norm(size, config.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.norm = norm(size, config.rms_norm_eps)
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_tables()

    def tables(self, count: int) -> tuple[Tensor, Tensor]:
        """Compute the family's rotary tables; see :class:`.parts.RotaryPositions`."""
        if self.config.family is None:
            return super().tables(count)
        return rotary_tables(self.config.family, self._layer_config, count)

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise a new module at the target's scale, from states (N, H) of real tokens.

        The final norm is set to the root mean square of the hidden states in each dimension.
        """
        self.init_own_head()
        if self.config.family is not None:  # the layer's class does not initialise itself
            for parameter in self.layer.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, self._layer_config.initializer_range)
        scale = hidden.float().pow(2).mean(0).sqrt()  # (H,)
        self.norm.weight.copy_(scale)
        unit = self.norm(torch.ones_like(scale).to(hidden)).float()
        self.norm.weight.sub_(unit - scale)  # some families' weights are centred on zero

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Run a step of the unroll; see :class:`.interface.Drafter`. Visibility of keys is as in EAGLE-3."""
        return self._next(ids, g, position, partial(ttt_attention, state=state))

    def extend(self, ids: Tensor, g: Tensor, position: Tensor, cached: CacheView) -> tuple[Tensor, Tensor]:
        g = self._next(ids, g, position, partial(parts.cached_attention, cached=cached))
        return g, self.read(g)

    def read(self, g: Tensor) -> Tensor:
        """Return the LM head's input: the final norm of g, unless g already includes it."""
        return g if self.config.post_norm else self.norm(g)

    def _next(self, ids: Tensor, g: Tensor, position: Tensor, attend: Attend) -> Tensor:
        """Apply the module: (B, T) tokens, (B, T, H) states -> (B, T, H)."""
        dtype = self.fc.weight.dtype
        embedded = self.embed(ids).to(dtype)
        if self._family is not None and self._family.zero_first:
            embedded = embedded.masked_fill((position == 0)[..., None], 0.0)
        joined = torch.cat([self.token_norm(embedded), self.state_norm(g.to(dtype))], dim=-1)  # (B, T, 2H)
        x = linear(joined, self.fc.weight)
        if isinstance(self.layer, PreNormLayer):
            q, k, v = self.layer.qkv(x, *self.rotary(position))
            x = self.layer.finish(x, attend(q, k, v))
        else:
            x = run_layer(self.layer, x, position, (self.cos[position], self.sin[position]), attend)
        return self.norm(x) if self.config.post_norm else x

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MtpDrafter:
        """Keep the dtype of the experts' routing biases, because bf16 would select different experts."""
        stored = self.layer.state_dict()
        kept = {name: buffer for name, buffer in self.layer.named_buffers() if name in stored}
        super()._apply(fn, recurse)
        for name, buffer in kept.items():
            owner, _, own = name.rpartition(".")
            module = self.layer.get_submodule(owner)
            setattr(module, own, buffer.to(getattr(module, own).device))
        return self
