"""The Medusa drafter: independent heads over the target's last hidden state.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024).
Head k makes ``h + SiLU(W_k h + b_k)`` of the hidden state h of position t; an LM head reads it as the
distribution of x_{t+2+k}. The LM head is the target's, or one of its own that all heads share.

In the training-time test step k's g is head k's output of what step 0 was fed; tokens, positions and the
other steps' g are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ..ttt.attention import TTTState
from . import parts
from .parts import OverTarget, share_target

MOST_HEADS = 5


@dataclass(frozen=True)
class MedusaConfig(parts.DictSizes):
    """Sizes of a Medusa drafter.

    Attributes:
        hidden_size: H, equal to the target's.
        vocab_size: V, rows of the target's LM head.
        draft_vocab_size: R, rows of the own LM head; None shares the target's.
        medusa_heads: 1 to 5.
    """

    kind: ClassVar[str] = "medusa"

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None
    max_position_embeddings: int
    medusa_heads: int = MOST_HEADS

    def __post_init__(self) -> None:
        problem = parts.size_problem(self)
        if problem is None and not 1 <= self.medusa_heads <= MOST_HEADS:
            problem = f"{self.medusa_heads} Medusa heads, not within 1 to {MOST_HEADS}"
        parts.refuse(problem)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """None: this kind reads the final hidden states."""
        return ()

    @classmethod
    def from_target(cls, target: parts.TargetSizes, wishes: parts.SizeWishes) -> MedusaConfig:
        """The target's sizes and the wished number of heads."""
        return cls(
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            draft_vocab_size=wishes.draft_vocab_size,
            max_position_embeddings=target.max_position_embeddings,
            medusa_heads=MOST_HEADS if wishes.medusa_heads is None else wishes.medusa_heads,
        )


class MedusaBlock(nn.Module):
    """``h + SiLU(W h + b)``, the identity until it is trained (W and b are zero)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        """(..., H) -> (..., H)."""
        return h + F.silu(self.linear(h))


class MedusaDrafter(OverTarget, nn.Module):
    """Medusa heads over a frozen target; arguments and errors as of every kind (``Eagle1Drafter``)."""

    kind: str = "medusa"
    label = "Medusa"
    sizes_type = MedusaConfig
    reads: Literal["aux", "hidden"] = "hidden"
    positions: int | None = None

    def __init__(
        self, config: MedusaConfig, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__()
        share_target(self, config, embedding, target_head, target_ids)
        self.config = config
        self.blocks = nn.ModuleList(MedusaBlock(config.hidden_size) for _ in range(config.medusa_heads))
        if config.draft_vocab_size is not None:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    @property
    def max_steps(self) -> int | None:
        """One step a head."""
        return self.config.medusa_heads

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """An own LM head takes the target's rows; the blocks are the identity already."""
        self.init_own_head()

    def ensure_positions(self, count: int) -> None:
        """Positions are not used."""

    def heads(self, h: Tensor, count: int) -> Tensor:
        """What the first ``count`` heads make of hidden states: (..., H) -> (count, ..., H)."""
        return torch.stack([self.blocks[step](h) for step in range(count)])

    def ttt_step(self, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
        """Head k of the hidden states that step 0 was fed; ids, positions and later g (B, T, H) are not read.

        Raises:
            ConfigError: more steps than heads.
        """
        step = len(state.k)
        if step >= self.config.medusa_heads:
            raise ConfigError(
                "a Medusa drafter has no head for this step",
                got=f"ttt.steps of {step + 1} or more",
                expected=f"at most {self.config.medusa_heads}, one a head",
                remedy="lower ttt.steps, or raise drafter.medusa_heads",
            )
        state.k.append(g if step == 0 else g[..., :0])
        state.v.append(g[..., :0])
        return self.blocks[step](state.k[0])
