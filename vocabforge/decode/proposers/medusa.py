"""Medusa proposer: a tree over independent heads on the target's last hidden state (Cai et al. 2024).

Head k's distribution does not depend on the path, so all nodes of a level have one state: the heads run once
per cycle, and their states are scored once, in one call for all levels if the draft head supports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...models.drafters.medusa import MedusaDrafter
from ...models.heads.registry import exact_head
from ...models.kv_cache import KVCache
from ..interface import DraftBackend, DraftStep, Frontier
from ..trees.policies import choose_policy
from .levels import LevelHead, level_step
from .model import ModelProposer
from .registry import ProposerParts


class MedusaBackend(DraftBackend):
    """Draft states of the first ``levels`` Medusa heads, the same for all nodes of a level."""

    kind, label = "medusa", "Medusa"
    reads: Literal["aux", "hidden", "none"] = "hidden"

    def __init__(self, drafter: MedusaDrafter, levels: int) -> None:
        self.drafter, self.levels = drafter, levels
        self.most_levels = drafter.config.medusa_heads

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        weight = next(iter(self.drafter.parameters()))
        size = self.drafter.config.hidden_size
        self._h = torch.zeros(rows, size, dtype=weight.dtype, device=weight.device)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        self._h[row] = states[-1]

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        assert states is not None
        last = (counts - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
        self._h.copy_(torch.where((counts == 0)[:, None], self._h, states.gather(1, last)[:, 0]))

    def device_state(self) -> Sequence[Tensor]:
        return (self._h,)

    def view(self) -> Tensor:
        return self._h[0, :0]

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        states = self.drafter.read(self.drafter.heads(self._h, self.levels))
        self.states = states.transpose(0, 1)  # (B, levels, H)
        return DraftStep(self.states[:, :1], roots[:, None], self._h[:, None], None)

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        """Return the state of head ``level`` for every node: all heads were fed the same token and state."""
        return level_step(self.states, frontier, step, level)


def build(parts: ProposerParts) -> ModelProposer:
    """Build the proposer of Medusa heads, by default with a fixed tree."""
    policy = choose_policy(parts.options, "static", parts.drafter.config.medusa_heads)
    backend = MedusaBackend(parts.drafter, policy.plan.levels)
    head = parts.head or exact_head(parts.drafter)
    return ModelProposer(backend, LevelHead(head, backend, policy.width), policy)
