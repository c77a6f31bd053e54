"""The P-EAGLE drafter: EAGLE-3 with mask tokens for all drafts after the first, in the same pass.

arXiv 2602.01469. Draft 0 of row t is EAGLE-3's, with inputs x_{t+1} and ``fc`` of the target's features.
Draft k >= 1 has as inputs a mask token and ``fc`` of a learned vector instead of the features, at rotary
position t + k. It attends to draft 0's rows s <= t of the document and its block's drafts up to itself.

Training computes draft 0 at every position, and the other drafts of a block at anchors sampled in each step.
The published recipe keeps a random fraction of each depth; whole blocks cost the same for equally many rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..kv_cache import CacheView
from ..ttt.attention import TTTState, ttt_attention
from ..ttt.blocks import block_attention, block_positions, tokens_behind
from ..ttt.merged import Documents
from . import parts
from .eagle3 import Eagle3Config, Eagle3Drafter
from .parallel import ParallelDrafter

BLOCK_SIZE, LAYERS = 8, 4


@dataclass(frozen=True)
class PEagleConfig(Eagle3Config):
    """Sizes of a P-EAGLE drafter; see :class:`.eagle3.Eagle3Config`.

    Attributes:
        block_size: K, drafts per pass.
        mask_token_id: row of the target's embedding used for mask tokens; None for a separate trained row.
    """

    kind: ClassVar[str] = "peagle"
    later: ClassVar[tuple[str, ...]] = ()
    causal: ClassVar[bool] = True

    num_layers: int = LAYERS
    block_size: int = BLOCK_SIZE
    mask_token_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.refuse(parts.block_problem(self))
        if self.sliding_window is not None:
            parts.refuse("sliding_window is for EAGLE-3 drafters, not for P-EAGLE")


class PEagleDrafter(Eagle3Drafter, ParallelDrafter):
    """A P-EAGLE drafter over a frozen target; see :class:`.parallel.ParallelDrafter`."""

    kind: str = "peagle"
    label = "P-EAGLE"
    sizes_type: type[Any] = PEagleConfig
    first_everywhere = True
    config: PEagleConfig

    def __init__(
        self, config: PEagleConfig, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        size = config.hidden_size
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(config.aux_layers) * size))
        if config.mask_token_id is None:
            self.mask_embedding = nn.Parameter(torch.empty(size).normal_(0.0, 0.02))

    @property
    def max_steps(self) -> int | None:
        """Drafts per pass."""
        return self.config.block_size

    @property
    def block_rows(self) -> int:
        """Mask rows per pass: all drafts except the first."""
        return self.config.block_size - 1

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise as EAGLE-3, and the learned vectors with the means of the features and the embedding."""
        super().init_from_target(features, hidden)
        self.mask_hidden.copy_(features.float().mean(0))
        if self.config.mask_token_id is None:
            self.mask_embedding.copy_(self.embedding.float().mean(0))

    def draft_blocks(
        self,
        context: Tensor,
        ids: Tensor,
        position: Tensor,
        document: Tensor,
        anchors: Tensor,
        attention: str,
    ) -> list[Tensor]:
        """Compute the drafts: draft 0 is (B, T, H), the others (B, A, H)."""
        size = self.block_rows
        places = block_positions(anchors, position, size, self.positions)  # (B, A * (K - 1))
        first = Documents.find(document).first
        far, near = self.rotary(position.clamp(max=self.positions - 1)), self.rotary(places)
        every = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        embedded, fed = self.embed(tokens_behind(ids, every, 1)), self._masks(places)
        x, y = context, fed[1]
        for index in range(self.config.num_layers):
            if index == 0:
                q, k, v, x = self.midlayer.qkv(embedded, x, *far)
                own_q, own_k, own_v, y = self.midlayer.qkv(*fed, *near)
                layer: Any = self.midlayer
            else:
                layer = self.layers[str(index)]
                q, k, v = layer.qkv(x, *far)
                own_q, own_k, own_v = layer.qkv(y, *near)
            x = layer.finish(x, ttt_attention(q, k, v, TTTState(document, attention)))
            attended = block_attention(
                own_q, (k, v), (own_k, own_v), anchors, first, causal=True, attention=attention
            )
            y = layer.finish(y, attended)
        if self.config.norm_output:
            x, y = self.norm(x), self.norm(y)
        return [x, *y.unflatten(1, (anchors.shape[1], size)).unbind(2)]

    def _masks(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of mask rows at positions (B, N): embedded tokens and states, (B, N, H) each."""
        number = self.config.mask_token_id
        mask: Tensor = self.mask_embedding if number is None else self.embedding[number]
        state = self.fuse(self.mask_hidden)[0, 0]
        shape = (*places.shape, -1)
        return mask.to(state.dtype).expand(shape), state.expand(shape)

    def read_rows(self, drafts: Tensor) -> Tensor:
        return self.read(drafts)

    def absorb(self, following: Tensor, states: Tensor, position: Tensor, cached: CacheView) -> Tensor:
        """Store committed positions; return draft 0 of each, (B, L, H)."""
        return self.extend(following, self.fuse(states), position, cached)[0]

    def draft(self, roots: Tensor, last: Tensor | None, position: Tensor, cached: CacheView) -> Tensor:
        assert last is not None
        embedded, state = self._masks(position)
        y = self._through(embedded, state, position, cached)[0]
        return torch.cat([last[:, None], y], 1)
