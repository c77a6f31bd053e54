"""What drafters of several kinds hold beside their layers: the target's tensors, and rotary tables.

Mix-ins without state of their own, and not modules inside the drafter: those would change the serving names of its
parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import MismatchError
from .drafter import DrafterSizes
from .rope import rope_tables

_READY_POSITIONS = 131_072


class OverTarget:
    """Mix-in of a drafter over a frozen target, read by the target's LM head or by its own (``lm_head``)."""

    config: Any
    embedding: Tensor
    target_head: Tensor
    target_ids: Tensor
    lm_head: nn.Linear

    @property
    def has_own_head(self) -> bool:
        return self.config.draft_vocab_size is not None

    @property
    def head_weight(self) -> Tensor:
        """The rows that score draft tokens: (R, H) or (V, H)."""
        return self.lm_head.weight if self.has_own_head else self.target_head

    @torch.no_grad()
    def init_own_head(self) -> None:
        """An own LM head takes the target's rows of the same tokens."""
        if self.has_own_head:
            self.lm_head.weight.copy_(self.target_head[self.target_ids])

    def fuse(self, features: Tensor) -> Tensor:
        """The target's hidden states as they are: (..., H)."""
        return features

    def read(self, g: Tensor) -> Tensor:
        """The LM head reads g itself."""
        return g

    def logits(self, g: Tensor) -> Tensor:
        """(..., H) -> (..., R or V) draft logits."""
        return F.linear(self.read(g), self.head_weight)

    def embed(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, H)."""
        return F.embedding(ids, self.embedding)


class RotaryPositions:
    """Mix-in of a drafter with rotary positions: tables ``cos`` and ``sin`` (P, D), see :func:`register_tables`."""

    config: Any
    cos: Tensor
    sin: Tensor

    @property
    def positions(self) -> int:
        """Length of the rotary tables."""
        return int(self.cos.shape[0])

    def ensure_positions(self, count: int) -> None:
        """Lengthen the rotary tables to at least ``count`` positions.

        Padding rows and deep trees reach past the target's context, and a drafter may have been trained for a
        shorter context than it decodes in. What was made keeps its values.
        """
        if count > self.positions:
            # A table made in inference mode could not be used in training again.
            with torch.inference_mode(False):
                cos, sin = rope_tables(self.config.rope, self.config.head_dim, count)
                self.cos, self.sin = cos.to(self.cos), sin.to(self.sin)

    def rotary(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin (B, 1, T, D) of positions (B, T)."""
        return self.cos[position][:, None], self.sin[position][:, None]


def share_target(
    drafter: nn.Module, sizes: DrafterSizes, embedding: Tensor, head: Tensor, target_ids: Tensor | None
) -> None:
    """Register the target's tensors, and the own head's ids, as buffers that are neither trained nor saved.

    Args:
        embedding: (V, H).
        head: (V, H).
        target_ids: (R,) ascending target ids of the own head's rows; needed where R is below V.

    Raises:
        MismatchError: other shapes.
    """
    expected = (sizes.vocab_size, sizes.hidden_size)
    for name, tensor in (("input embedding", embedding), ("LM head", head)):
        if tuple(tensor.shape) != expected:
            raise MismatchError(
                f"the target's {name} does not fit the drafter",
                got=f"shape {tuple(tensor.shape)}",
                expected=f"shape {expected}",
                remedy="use the target that the drafter was trained for",
            )
    rows = sizes.draft_vocab_size
    if rows is not None and rows != sizes.vocab_size and (target_ids is None or len(target_ids) != rows):
        raise MismatchError(
            "the drafter's own head has no matching list of target ids",
            got="none" if target_ids is None else f"{len(target_ids)} ids",
            expected=f"{rows} ids",
        )
    if target_ids is None:
        target_ids = torch.arange(rows or sizes.vocab_size)
    drafter.register_buffer("embedding", embedding.detach(), persistent=False)
    drafter.register_buffer("target_head", head.detach(), persistent=False)
    drafter.register_buffer("target_ids", target_ids, persistent=False)


def register_tables(drafter: nn.Module, sizes: Any) -> None:
    """Register rotary tables ``cos`` and ``sin`` (P, D), fp32, neither trained nor saved.

    P is the positions that the sizes admit or 131,072: tables of what some configurations admit would take gigabytes,
    and ``ensure_positions`` makes more where they are read.
    """
    cos, sin = rope_tables(sizes.rope, sizes.head_dim, min(sizes.max_position_embeddings, _READY_POSITIONS))
    drafter.register_buffer("cos", cos, persistent=False)
    drafter.register_buffer("sin", sin, persistent=False)
