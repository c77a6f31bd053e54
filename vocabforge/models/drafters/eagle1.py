"""The EAGLE-1 and EAGLE-2 drafter; the two differ only in the draft tree, and HASS only in training.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024), and "EAGLE-2" (2024).
``x = fc([e(x_{t+1}) ; f_t])``; a decoder layer without input norm maps it to g, an estimate of the target's
next hidden state f_{t+1}, to which the LM head is applied directly. f_t is the target's last hidden state
after its final norm. Parameter names follow the serving layout (``fc``, ``layers.0.*``).

A single step of the unroll (K = 1) is EAGLE's training; K > 1 feeds back the drafter's own g, as in Zhang et
al., "Learning Harmonized Representations for Speculative Sampling" (HASS, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...ops.few_rows import linear
from ..kv_cache import CacheView, KVCache
from ..ttt.attention import TTTState, ttt_attention
from . import parts
from .eagle_layers import PlainLayer, run_layers
from .interface import CachedDrafter
from .parts import RotaryPositions

_TINY = 1e-12
_SCALE_ROWS = 4096  # evenly spread embedding rows used to estimate the embedding's scale


@dataclass(frozen=True)
class Eagle1Config(parts.LayerSizes):
    """Sizes of an EAGLE-1/2 drafter.

    Attributes:
        fc_bias: ``fc`` has a bias. vLLM supports none; SGLang always adds one (exported as zeros if false).
    """

    kind: ClassVar[str] = "eagle1"
    num_layers: ClassVar[int] = 1
    aux_layers: ClassVar[tuple[int, ...]] = ()  # uses the final hidden states

    fc_bias: bool = False


class Eagle1Drafter(RotaryPositions, CachedDrafter):
    """An EAGLE-1/2 drafter over a frozen target; see :class:`.interface.Drafter`."""

    kind: str = "eagle1"
    label = "EAGLE-1/2"
    sizes_type = Eagle1Config
    reads: Literal["aux", "hidden"] = "hidden"

    def __init__(
        self, config: Eagle1Config, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList([PlainLayer(config)])
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_tables()

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise ``fc`` so that its two inputs have equal scale, from states (N, H) of real tokens.

        Without an input norm, the embedding's half of ``fc`` is scaled by the ratio of the root mean squares.
        """
        self.init_own_head()
        some = self.embedding[:: -(-len(self.embedding) // _SCALE_ROWS)].float()
        ratio = hidden.float().pow(2).mean().sqrt() / some.pow(2).mean().sqrt().clamp(min=_TINY)
        self.fc.weight[:, : self.config.hidden_size].mul_(ratio)
        if self.fc.bias is not None:
            self.fc.bias.zero_()

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Run a step of the unroll; see :class:`.interface.Drafter`. Visibility of keys is as in EAGLE-3."""
        layer, x = self._layer, self._join(ids, g)
        q, k, v = layer.qkv(x, *self.rotary(position))
        return layer.finish(x, ttt_attention(q, k, v, state))

    def extend(self, ids: Tensor, g: Tensor, position: Tensor, cached: CacheView) -> tuple[Tensor, Tensor]:
        layer, x = self._layer, self._join(ids, g)
        if layer.fits(x, cached.mask):
            angles = self.angles(position, cached.mask)
            return run_layers([layer], x, None, None, angles, cached)
        q, k, v = layer.qkv(x, *self.rotary(position))
        g = layer.finish(x, parts.cached_attention(q, k, v, cached))
        return g, g

    def write_keys(self, ids: Tensor, g: Tensor, position: Tensor, cache: KVCache) -> bool:
        k, v = self._layer.self_attn.keys(self._join(ids, g), *self.rotary(position))
        cache.write(0, k, v, position)
        return True

    @property
    def _layer(self) -> PlainLayer:
        layer = self.layers[0]
        assert isinstance(layer, PlainLayer)
        return layer

    def _join(self, ids: Tensor, g: Tensor) -> Tensor:
        """Compute fc([e(x) ; g]): (B, T), (B, T, H) -> (B, T, H)."""
        joined = torch.cat([self.embed(ids), g], dim=-1)  # (B, T, 2H)
        return linear(joined.to(self.fc.weight.dtype), self.fc.weight, self.fc.bias)
