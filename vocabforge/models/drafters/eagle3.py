"""The EAGLE-3 drafter: one module for training and decoding, so that the two cannot diverge.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of LLMs via Training-Time Test" (2025).
``g0 = fc([f_low ; f_mid ; f_high])``; a decoder layer with q, k and v from ``[norm(e(x)) ; norm(g)]`` outputs
the next step's g. Parameter names follow the serving layout (``fc``, ``midlayer.*``, ``norm``,
``lm_head``). Other tools place norms differently; these variants are switches of ``Eagle3Config``.

Training (``ttt_step``) and decoding (``extend``) differ only in the keys that a row attends to; projections,
norms, rotary positions and the MLP are the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ...core.values import LEAST_WINDOW
from ...ops.draft_chain import draft_chain
from ...ops.few_rows import linear
from ..kv_cache import CacheView, KVCache
from ..target.hf import default_aux_layers
from ..ttt.attention import TTTState, ttt_attention
from . import parts
from .eagle_layers import Embedded, MidLayer, PreNormLayer, RMSNorm, run_layers
from .interface import CachedDrafter
from .parts import RotaryPositions

_TINY = 1e-12
# Norm switches.
FORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")


@dataclass(frozen=True)
class Eagle3Config(parts.LayerSizes):
    """Sizes of an EAGLE-3 drafter.

    Attributes:
        aux_layers: target layers (0-based outputs) that ``fc`` reads.
        norm_before_residual: the layer's residual is ``hidden_norm(g)``, not g.
        norm_before_fc: one RMSNorm over all n_aux * H features before ``fc`` (``input_norm``).
        fc_norm: an RMSNorm over each layer's H features before ``fc`` (``fc_norm.0`` to ``fc_norm.n-1``).
        norm_output: the next g is the normed output, which is also the input of the LM head.
        qk_norm: q and k of every head are normed before the rotation (``q_norm``, ``k_norm``).
        num_layers: decoder layers; ``midlayer`` is the first, and ``layers.1`` and so on are plain layers.
        sliding_window: number of positions that a token attends to, its own included; None for all.
    """

    kind: ClassVar[str] = "eagle3"
    later: ClassVar[tuple[str, ...]] = ("num_layers", "sliding_window")

    aux_layers: tuple[int, ...] = field(kw_only=True)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    num_layers: int = 1
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.refuse(parts.aux_problem(self))
        if self.sliding_window is not None and self.sliding_window < LEAST_WINDOW:
            parts.refuse(f"sliding_window {self.sliding_window} is below {LEAST_WINDOW}")
        if self.norm_before_fc and self.fc_norm:
            parts.refuse("norm_before_fc and fc_norm exclude each other")

    @staticmethod
    def default_layers(layers: int, wishes: Mapping[str, Any]) -> tuple[int, ...]:
        return default_aux_layers(layers)


class Eagle3Drafter(RotaryPositions, CachedDrafter):
    """An EAGLE-3 drafter over a frozen target; see :class:`.interface.Drafter`."""

    kind: str = "eagle3"
    label = "EAGLE-3"
    sizes_type = Eagle3Config
    reads: Literal["aux", "hidden"] = "aux"

    def __init__(
        self, config: Eagle3Config, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        count, size, eps = len(config.aux_layers), config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(count * size, size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(count * size, eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(size, eps) for _ in config.aux_layers)
        self.midlayer = MidLayer(config)
        self.layers = nn.ModuleDict({str(i): PreNormLayer(config) for i in range(1, config.num_layers)})
        self.norm = RMSNorm(size, eps)
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_tables()

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise at the target's scale from features (N, n_aux * H) and states (N, H) of real tokens.

        The final norm is set to the root mean square of the hidden states in each dimension, so that the
        initial logits have the target's scale. ``fc`` is scaled to give g0 a root mean square of 1.
        """
        self.init_own_head()
        self.norm.weight.copy_(hidden.float().pow(2).mean(0).sqrt())  # (H,)
        fused = self.fuse(features.to(self.fc.weight.dtype))
        self.fc.weight.div_(fused.float().pow(2).mean().sqrt().clamp(min=_TINY))

    def fuse(self, features: Tensor) -> Tensor:
        """Compute g0 = fc(features), with norms if configured: (..., n_aux * H) -> (..., H)."""
        features = features.to(self.fc.weight.dtype)
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            chunks = features.chunk(len(self.fc_norm), dim=-1)  # n_aux of (..., H)
            features = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks)], dim=-1)
        return linear(features, self.fc.weight)

    def read(self, g: Tensor) -> Tensor:
        """Return the LM head's input: the final norm of g, or g itself with ``norm_output``."""
        return g if self.config.norm_output else self.norm(g)

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Run step k, with token x_{t+1+k} at rotary position t + k as the input of row t; see ``Drafter``.

        In each layer, row t attends to the step-0 keys s <= t of its document and its own keys of steps 1..k,
        within ``sliding_window`` positions.
        """

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return ttt_attention(q, k, v, state.layer(index), self.config.sliding_window)

        g = self._run(self.embed(ids), g, position, attend)
        return self.norm(g) if self.config.norm_output else g

    def _run(self, embedded: Tensor, g: Tensor, position: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        angles = self.rotary(position)
        q, k, v, residual = self.midlayer.qkv(embedded, g, *angles)
        g = self.midlayer.finish(residual, attend(0, q, k, v))
        for index, layer in enumerate(self._deeper, 1):
            q, k, v = layer.qkv(g, *angles)
            g = layer.finish(g, attend(index, q, k, v))
        return g

    def extend(self, ids: Tensor, g: Tensor, position: Tensor, cached: CacheView) -> tuple[Tensor, Tensor]:
        return self._through((self.embedding, ids), g, position, cached)

    def write_keys(self, ids: Tensor, g: Tensor, position: Tensor, cache: KVCache) -> bool:
        if self._deeper:  # they read the first layer's output
            return False
        k, v = self.midlayer.keys(self.embed(ids), g, *self.rotary(position))
        cache.write(0, k, v, position)
        return True

    def _through(
        self, embedded: Embedded, g: Tensor, position: Tensor, cached: CacheView
    ) -> tuple[Tensor, Tensor]:
        """Run :meth:`extend` on embedded tokens."""
        first = self.midlayer
        if first.fits(g, cached.mask):
            angles = self.angles(position, cached.mask)
            layers = [first, *self._deeper]
            g, normed = run_layers(layers, g, embedded, self.norm.weight, angles, cached)
            return (normed if self.config.norm_output else g), normed
        embedded = self.embed(embedded[1]) if isinstance(embedded, tuple) else embedded

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return parts.cached_attention(q, k, v, cached, index)

        g = self._run(embedded, g, position, attend)
        normed = self.norm(g)
        return (normed if self.config.norm_output else g), normed

    def chain(
        self,
        ids: Tensor,
        features: Tensor,
        start: int,
        count: int,
        *,
        cache: KVCache,
        head: Tensor,
        head_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Draft after committed tokens (N,) with :func:`.draft_chain.draft_chain`; for one decoder layer."""
        fused = self.config.norm_before_fc or self.config.fc_norm
        return draft_chain(
            self.fuse(features) if fused else features,
            None if fused else self.fc.weight,
            ids,
            start=start,
            count=count,
            embedding=self.embedding,
            normed_output=self.config.norm_output,
            norm=self.norm.weight,
            cos=self.cos,
            sin=self.sin,
            keys=cache.k,
            values=cache.v,
            head=head,
            head_ids=head_ids,
            **self.midlayer.merged(),
        )

    @property
    def _deeper(self) -> list[PreNormLayer]:
        return cast("list[PreNormLayer]", list(self.layers.values()))
