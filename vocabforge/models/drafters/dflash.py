"""The DFlash drafter: a block of drafts in one pass over target features (one-step block diffusion).

arXiv 2602.06036. The context is ``c_s = RMSNorm(fc [F^1_s; ..; F^m_s])``, one vector per position for all
layers. A block appends b rows to the context: the last known token and b - 1 mask tokens, embedded by the
target's embedding. Every layer computes keys and values of the context and of the block with the same
matrices; a row attends to the whole context and to all rows of its block. Row j predicts the token at its own
position (*fill-in*), so b rows give b - 1 drafts.

Only keys and values of the context are cached; nothing computed from a mask token outlives its cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ...ops.few_rows import linear
from ..kv_cache import CacheView
from ..lean.layers import rms_norm
from ..rope import apply_rope
from ..ttt.blocks import block_attention, block_positions, tokens_behind
from ..ttt.merged import Documents
from . import parts
from .eagle_layers import PreNormLayer, RMSNorm, run_layers, weight_state
from .parallel import ParallelDrafter
from .parts import RotaryPositions

BLOCK_SIZE, LAYERS = 8, 5


@dataclass(frozen=True)
class DFlashConfig(parts.LayerSizes):
    """Sizes of a DFlash drafter.

    Attributes:
        aux_layers: target layers (0-based outputs) that ``fc`` reads, ascending.
        num_layers: L.
        block_size: b, rows of a block including the last known token.
        mask_token_id: row of the target's embedding used for mask tokens; None for a separate trained row.
        causal: a row attends only to the rows of its block up to itself.
    """

    kind: ClassVar[str] = "dflash"
    qk_norm: ClassVar[bool] = True

    rms_norm_eps: float = 1e-6
    aux_layers: tuple[int, ...] = field(kw_only=True)
    num_layers: int = LAYERS
    block_size: int = BLOCK_SIZE
    mask_token_id: int | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.refuse(parts.aux_problem(self) or parts.block_problem(self))

    @property
    def drafts(self) -> int:
        """Drafts per block."""
        return self.block_size - 1

    @staticmethod
    def default_layers(layers: int, wishes: Mapping[str, Any]) -> tuple[int, ...]:
        return spread_layers(layers, wishes.get("num_layers", LAYERS))


def spread_layers(layers: int, count: int) -> tuple[int, ...]:
    """Choose ``count`` layers (0-based outputs), evenly spread from the second to the third to last."""
    count = min(count, layers)
    if count == 1:
        return (layers // 2,)
    first = min(1, layers - count)
    last = max(layers - 3, first + count - 1)
    return tuple(round(first + i * (last - first) / (count - 1)) for i in range(count))


class DFlashDrafter(RotaryPositions, ParallelDrafter):
    """A DFlash drafter over a frozen target; see :class:`.parallel.ParallelDrafter`."""

    kind: str = "dflash"
    label = "DFlash"
    sizes_type: type[Any] = DFlashConfig
    reads: Literal["aux", "hidden"] = "aux"
    first_row = 1  # first row of a block that predicts a token
    _merged_keys: tuple[tuple[int, int], Tensor, Tensor] | None = None

    def __init__(
        self, config: Any, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.aux_layers) * size, size, bias=False)
        self.hidden_norm = RMSNorm(size, eps)
        self.layers = nn.ModuleList(PreNormLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(size, eps)
        if config.mask_token_id is None:
            self.mask_embedding = nn.Parameter(torch.empty(size).normal_(0.0, 0.02))
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(size, config.draft_vocab_size, bias=False)
        self.register_tables()

    @property
    def max_steps(self) -> int | None:
        """Drafts per block."""
        return int(self.config.drafts)

    @property
    def block_rows(self) -> int:
        """Rows of a block, each with a slot after the context."""
        return int(self.config.block_size)

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise at the target's scale, from features (N, m * H) and hidden states (N, H) of real tokens.

        The final norm is set to the root mean square of the hidden states in each dimension, and a trained
        mask row to the mean of the embedding's rows.
        """
        self.init_own_head()
        self.norm.weight.copy_(hidden.float().pow(2).mean(0).sqrt())
        if self.config.mask_token_id is None:
            self.mask_embedding.copy_(self.embedding.float().mean(0))

    def fuse(self, features: Tensor) -> Tensor:
        """Compute the context c: (..., m * H) -> (..., H)."""
        return self.hidden_norm(linear(features.to(self.fc.weight.dtype), self.fc.weight))

    def read(self, g: Tensor) -> Tensor:
        """Return the LM head's input, the final norm of g (..., H)."""
        return self.norm(g)

    def read_rows(self, drafts: Tensor) -> Tensor:
        return self.norm(drafts)

    def draft_blocks(
        self,
        context: Tensor,
        ids: Tensor,
        position: Tensor,
        document: Tensor,
        anchors: Tensor,
        attention: str,
    ) -> list[Tensor]:
        size = self.block_rows
        places = block_positions(anchors, position, size, self.positions)  # (B, A * b)
        own, far = self.rotary(places), self.rotary(position.clamp(max=self.positions - 1))
        first = Documents.find(document).first
        x = self._block(tokens_behind(ids, anchors, 1)).flatten(1, 2)  # (B, A * b, H)
        for layer in self._layers:
            q, k, v = layer.qkv(x, *own)
            seen = layer.self_attn.keys(context, *far)
            attended = block_attention(
                q, seen, (k, v), anchors, first, causal=self.config.causal, attention=attention
            )
            x = layer.finish(x, attended)
        drafts = x.unflatten(1, (anchors.shape[1], size))[:, :, self.first_row :]
        return self.marked(list(drafts.unbind(2)), ids, anchors)

    def marked(self, drafts: list[Tensor], ids: Tensor, anchors: Tensor) -> list[Tensor]:
        """Append per-draft information to the row states; nothing here."""
        return drafts

    def _block(self, known: Tensor) -> Tensor:
        """Return the embedded rows of blocks that start with known tokens (...): (..., b, H)."""
        first = self.embed(known)[..., None, :]
        number = self.config.mask_token_id
        mask: Tensor = self.mask_embedding if number is None else self.embedding[number]
        return torch.cat([first, mask.to(first.dtype).expand(*known.shape, self.block_rows - 1, -1)], -2)

    def absorb(self, following: Tensor, states: Tensor, position: Tensor, cached: CacheView) -> None:
        """Store the keys and values of committed positions; tokens and mask are not used."""
        matrix, norm = self._key_rows()
        kept = linear(self.fuse(states), matrix).unflatten(-1, (len(norm), 2, -1, self.config.head_dim))
        keys, values = kept.unbind(3)  # (B, L, layers, kv, D)
        near = self.cos[position][:, :, None, None], self.sin[position][:, :, None, None]
        keys = apply_rope(rms_norm(keys, norm, self.norm.small), *near)
        cached.cache.write_all(keys, values, cached.slots)

    def draft(self, roots: Tensor, last: Tensor | None, position: Tensor, cached: CacheView) -> Tensor:
        x, layers = self._block(roots), self._layers
        if layers[0].fits(x, cached.mask):
            near = self.cos[position], self.sin[position]
            return run_layers(layers, x, None, None, near, cached)[0][:, self.first_row :]
        angles = self.rotary(position)
        for index, layer in enumerate(layers):
            q, k, v = layer.qkv(x, *angles)
            x = layer.finish(x, parts.cached_attention(q, k, v, cached, index))
        return x[:, self.first_row :]

    def _key_rows(self) -> tuple[Tensor, Tensor]:
        """Return all layers' key and value weights (L * 2 * kv * D, H) and key norms (L, 1, D)."""
        first = self._layers[0].self_attn.k_proj.weight
        if self._merged_keys is None or self._merged_keys[0] != weight_state(first):
            attentions = [layer.self_attn for layer in self._layers]
            pairs = [(attention.k_proj.weight, attention.v_proj.weight) for attention in attentions]
            matrix = torch.cat([weight for pair in pairs for weight in pair])
            norm = torch.stack([attention.k_norm.weight for attention in attentions])[:, None]
            self._merged_keys = weight_state(first), matrix.detach(), norm.detach()
        return self._merged_keys[1:]

    @property
    def _layers(self) -> list[PreNormLayer]:
        return cast("list[PreNormLayer]", list(self.layers))
