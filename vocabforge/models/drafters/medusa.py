"""The Medusa drafter: independent heads over the target's last hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024).
Head k computes ``h + SiLU(W_k h + b_k)`` from the hidden state h of position t, and an LM head maps it to the
distribution of x_{t+2+k}. The LM head is the target's, a separate head shared by all Medusa heads, or one per
Medusa head, as published. A Medusa head may stack several such blocks.

In the training-time test, the g of step k is the output of head k for the input of step 0; tokens, positions
and the other steps' g are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ..ttt.attention import TTTState
from . import parts
from .interface import Drafter

MOST_HEADS = 5
MOST_LAYERS = 8


@dataclass(frozen=True)
class MedusaConfig(parts.DictSizes):
    """Sizes of a Medusa drafter.

    Attributes:
        hidden_size: H, equal to the target's.
        vocab_size: V, rows of the target's LM head.
        draft_vocab_size: R, rows of the drafter's own LM head; None to share the target's.
        medusa_heads: number of Medusa heads, 1 to 5.
        medusa_layers: blocks per head.
        medusa_own_heads: each head has a separate LM head.
    """

    kind: ClassVar[str] = "medusa"
    aux_layers: ClassVar[tuple[int, ...]] = ()  # uses the final hidden states
    later: ClassVar[tuple[str, ...]] = ("medusa_layers", "medusa_own_heads")

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None
    max_position_embeddings: int
    medusa_heads: int = MOST_HEADS
    medusa_layers: int = 1
    medusa_own_heads: bool = False

    def __post_init__(self) -> None:
        problem = parts.size_problem(self)
        if problem is None and not 1 <= self.medusa_heads <= MOST_HEADS:
            problem = f"{self.medusa_heads} Medusa heads, not within 1 to {MOST_HEADS}"
        if problem is None and not 1 <= self.medusa_layers <= MOST_LAYERS:
            problem = f"{self.medusa_layers} blocks a Medusa head, not within 1 to {MOST_LAYERS}"
        if problem is None and self.medusa_own_heads and self.draft_vocab_size is None:
            problem = "medusa_own_heads over the target's LM head"
        parts.refuse(problem)

    @classmethod
    def from_target(cls, target: parts.TargetSizes, wishes: Mapping[str, Any]) -> MedusaConfig:
        """Create sizes from ``wishes``, values by field, and from the target for all other fields."""
        sizes: dict[str, Any] = {
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "draft_vocab_size": None,
            "max_position_embeddings": target.max_position_embeddings,
        }
        return cls(**{**sizes, **wishes})


class MedusaBlock(nn.Module):
    """The block ``h + SiLU(W h + b)``, initialised as the identity (W and b are zero)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        """Apply the block: (..., H) -> (..., H)."""
        return h + F.silu(self.linear(h))


def _blocks(size: int, count: int) -> nn.Module:
    """Create the blocks of one head; a single block is not wrapped, so its parameter names stay the same."""
    if count == 1:
        return MedusaBlock(size)
    return nn.Sequential(*(MedusaBlock(size) for _ in range(count)))


class MedusaDrafter(Drafter):
    """Medusa heads over a frozen target; see :class:`.interface.Drafter`."""

    kind: str = "medusa"
    label = "Medusa"
    sizes_type = MedusaConfig
    reads: Literal["aux", "hidden"] = "hidden"

    def __init__(
        self, config: MedusaConfig, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        size, rows = config.hidden_size, config.draft_vocab_size
        self.blocks = nn.ModuleList(_blocks(size, config.medusa_layers) for _ in range(config.medusa_heads))
        if config.medusa_own_heads:
            assert rows is not None
            self.lm_heads = nn.ModuleList(
                nn.Linear(size, rows, bias=False) for _ in range(config.medusa_heads)
            )
        elif rows is not None:
            self.lm_head = nn.Linear(size, rows, bias=False)

    @property
    def heads_differ(self) -> bool:
        """Whether each head has a separate LM head."""
        return bool(self.config.medusa_own_heads)

    @property
    def head_weight(self) -> Tensor:
        """LM head rows shared by all heads.

        Raises:
            ConfigError: each head has a separate LM head.
        """
        if self.heads_differ:
            raise ConfigError(
                "this Medusa drafter has an LM head for each of its heads",
                got="drafter.medusa_own_heads true",
                expected="one LM head, for a draft head, another draft vocabulary or this layout",
                remedy="use it as it is, or train one without drafter.medusa_own_heads",
            )
        return super().head_weight

    def head_rows(self, step: int) -> Tensor:
        """Return the LM head rows (R, H) or (V, H) of head ``step``."""
        return cast(Tensor, self.lm_heads[step].weight) if self.heads_differ else self.head_weight

    @property
    def max_steps(self) -> int | None:
        """One step per head."""
        return self.config.medusa_heads

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise own LM heads with the target's rows; the blocks are already the identity."""
        if not self.heads_differ:
            self.init_own_head()
        for step in range(self.config.medusa_heads if self.heads_differ else 0):
            self.head_rows(step).copy_(self.target_head[self.target_ids] * self.target_transform.scale)

    def heads(self, h: Tensor, count: int) -> Tensor:
        """Apply the first ``count`` heads to hidden states: (..., H) -> (count, ..., H)."""
        return torch.stack([self.blocks[step](h) for step in range(count)])

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Apply head k to the input of step 0; ids, positions and later g (B, T, H) are not used."""
        step = len(state.k)
        state.k.append(g if step == 0 else g[..., :0])
        state.v.append(g[..., :0])
        return self.blocks[step](state.k[0])
