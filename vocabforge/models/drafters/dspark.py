"""The DSpark drafter: DFlash's block, a bias from the previous token (Markov head), and a confidence head.

DeepSeek, arXiv 2607.05147. Rows are *anchor-first*: b rows give b drafts, and row k drafts the token after
x_{t+1+k}. Its logits are ``U h_k + W2 W1[x_{t+1+k}]``, where h_k is computed in a single pass for the block
and the second term depends on the previous draft. ``c_k = sigmoid(w . [h_k ; W1[x_{t+1+k}]] + w_0)``
estimates the probability that draft k is accepted if all drafts before it are.

A state g is ``[row ; W1[x]]``: (..., H + r). The drafter learns the transform of the target's logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...ops.few_rows import linear
from ..target.logits import IDENTITY, LogitTransform
from ..ttt.blocks import tokens_behind
from . import parts
from .dflash import DFlashConfig, DFlashDrafter

MARKOV_RANK = 256


@dataclass(frozen=True)
class DSparkConfig(DFlashConfig):
    """Sizes of a DSpark drafter; see :class:`.dflash.DFlashConfig`.

    Attributes:
        markov_rank: r, columns of W1 and W2.
        confidence: whether the drafter has a confidence head.
    """

    kind: ClassVar[str] = "dspark"

    markov_rank: int = MARKOV_RANK
    confidence: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.refuse(None if self.markov_rank >= 1 else f"markov_rank {self.markov_rank}")

    @property
    def drafts(self) -> int:
        """Drafts per block, one for each row."""
        return self.block_size


class MarkovHead(nn.Module):
    """Low-rank bigram bias: W1 (V, r) indexed by the previous token, W2 (R, r) by the scored token."""

    def __init__(self, vocab: int, rows: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, rows, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.01)


class ConfidenceHead(nn.Module):
    """Linear layer that computes the acceptance logit from [h ; W1[x]]."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.proj = nn.Linear(inputs, 1)


class DSparkDrafter(DFlashDrafter):
    """A DSpark drafter over a frozen target; see :class:`.parallel.ParallelDrafter`."""

    kind: str = "dspark"
    label = "DSpark"
    sizes_type: type[Any] = DSparkConfig
    first_row = 0
    rows_by_token = ("markov_head.markov_w2.weight",)  # (R, r), in the order of the head's rows

    def __init__(
        self, config: DSparkConfig, embedding: Tensor, target_head: Tensor, target_ids: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, target_head, target_ids)
        size, rank = config.hidden_size, config.markov_rank
        self.markov_head = MarkovHead(config.vocab_size, len(self.target_ids), rank)
        if config.confidence:
            self.confidence_head = ConfidenceHead(size + rank)

    @property
    def transform(self) -> LogitTransform:
        """The identity: the bias is added to the head's output, and the norm's weight learns the scale."""
        return IDENTITY

    @property
    def bias_weight(self) -> Tensor:
        """W2 (R, r)."""
        return self.markov_head.markov_w2.weight

    def token_state(self, before: Tensor) -> Tensor:
        """Return W1[x] of the token before a draft: (...) -> (..., r)."""
        return self.markov_head.markov_w1(before)

    @torch.no_grad()
    def init_from_target(self, features: Tensor, hidden: Tensor) -> None:
        """Initialise as :class:`.dflash.DFlashDrafter`, with logits at the target's scale."""
        super().init_from_target(features, hidden)
        if not self.has_own_head:
            self.norm.weight.mul_(self.target_transform.scale)

    def read(self, g: Tensor) -> Tensor:
        """Return ``[norm(row) ; W1[x]]`` (..., H + r).

        The LM head reads the first part, W2 the second, and the confidence head both.
        """
        size = self.config.hidden_size
        return torch.cat([self.norm(g[..., :size]), g[..., size:]], -1)

    def logits(self, g: Tensor, step: int = 0) -> Tensor:
        """Compute draft logits including the bias: (..., H + r) -> (..., R or V)."""
        state, size = self.read(g), self.config.hidden_size
        return linear(state[..., :size], self.head_weight) + linear(state[..., size:], self.bias_weight)

    def confidence(self, state: Tensor) -> Tensor | None:
        """Compute acceptance logits from the output of :meth:`read`: (..., H + r) -> (...)."""
        if not self.config.confidence:
            return None
        proj = self.confidence_head.proj
        return F.linear(state, proj.weight, proj.bias)[..., 0]

    def marked(self, drafts: list[Tensor], ids: Tensor, anchors: Tensor) -> list[Tensor]:
        """Append W1[x] of the previous token in the text (teacher forcing) to each draft."""
        before = [tokens_behind(ids, anchors, 1 + k) for k in range(len(drafts))]
        return [
            torch.cat([row, self.token_state(token).to(row.dtype)], -1) for row, token in zip(drafts, before)
        ]
