"""One forward pass of training: unroll, vocabulary losses, feature loss. What the strategies wrap.

The loss is sum_k w_k / N_k * sum over counted rows of step k, with N_k the number of counted rows of the WHOLE
batch, over all processes and micro-batches. Summed over them it is therefore the same number, and so is its
gradient, however the batch is divided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.online import CapturedBatch
from ..models.drafters.interface import Drafter
from ..models.target.logits import IDENTITY, LogitTransform
from .loss.candidates import Candidates, rows_among
from .loss.fused import LossInputs
from .loss.rows import StepFigures, TakenRows, feature_loss, split_figures, take_rows
from .loss.vocab import LossOptions, RowLoss, vocab_loss
from .ttt import unroll


@dataclass(frozen=True)
class StepSettings:
    """How the loss is put together.

    Attributes:
        decay: w_k = decay^k.
        token_weight: of the soft cross-entropy.
        feature_weight: of the SmoothL1 distance to the target's hidden states (EAGLE-1 and HASS).
        feature_noise: half width of the noise on what the drafter reads, for rows of 512 tokens.
        head_weights: lambda of every draft head that is trained, by name.
        freeze: the drafter is not trained, only the heads are.
    """

    decay: float
    token_weight: float = 1.0
    feature_weight: float = 0.0
    feature_noise: float = 0.0
    head_weights: tuple[tuple[str, float], ...] = ()
    freeze: bool = False
    attention: str = "auto"
    checkpointing: bool = False
    loss: LossOptions = field(default_factory=LossOptions)


class TrainStep(nn.Module):
    """Loss and figures of one micro-batch.

    Args:
        drafter: trained, or frozen with ``settings.freeze``.
        heads: low-rank scorers trained on the drafter's states, by name.
        target_head: (V, H), frozen; not registered, so that no wrapper moves, casts or sends it.
        transform: of the target's logits.
    """

    def __init__(
        self,
        drafter: Drafter,
        heads: nn.ModuleDict,
        target_head: Tensor,
        settings: StepSettings,
        transform: LogitTransform = IDENTITY,
    ) -> None:
        super().__init__()
        self.drafter: Any = drafter
        self.heads: Any = heads
        self.settings = settings
        self.drafter.requires_grad_(not settings.freeze)
        self._target_head = (target_head,)
        self._transform = transform

    def forward(
        self,
        batch: CapturedBatch,
        steps: int,
        rows: Tensor,
        noise: Tensor | None = None,
        candidates: Candidates | None = None,
    ) -> tuple[Tensor, tuple[StepFigures, ...], dict[str, RowLoss]]:
        """Loss and figures of one micro-batch.

        Args:
            batch: captured rows (B, T).
            steps: K.
            rows: (K,) fp32 counted rows of the whole batch, by draft step.
            noise: (B, T, .) added to what the drafter reads.
            candidates: tokens that the vocabulary losses are estimated on; None: all V.

        Returns:
            the loss, the figures of each draft step, and the row losses of each head (none in evaluation mode).
        """
        settings, drafter = self.settings, self.drafter
        unrolled = []
        with torch.set_grad_enabled(torch.is_grad_enabled() and not settings.freeze):
            unrolled = list(
                unroll(
                    drafter,
                    batch,
                    steps,
                    noise=noise,
                    attention=settings.attention,
                    checkpointing=settings.checkpointing,
                )
            )
            taken = take_rows(unrolled, batch.hidden, batch.facts)
            h = drafter.read(taken.g)  # (M, H)
        per_row = settings.decay ** taken.step.float() / rows.clamp(min=1)[taken.step]  # (M,)
        reduced = drafter.head_weight.shape[0] != self._target_head[0].shape[0]
        ids = drafter.target_ids if reduced else None
        own = self._vocab_loss(h, drafter.head_weight, ids, taken, per_row, candidates, drafter.transform)
        if not self.training:
            return settings.token_weight * own.total, split_figures(own, taken, unrolled), {}
        scored = {
            name: self._vocab_loss(head.project(h), head.head_weight, None, taken, per_row, candidates)
            for name, head in self.heads.items()
        }
        terms = [weight * scored[name].total for name, weight in settings.head_weights]
        if not settings.freeze:
            terms.append(settings.token_weight * own.total)
        if settings.feature_weight and not settings.freeze:
            terms.append(settings.feature_weight * feature_loss(taken, per_row))
        return torch.stack(terms).sum(), split_figures(own, taken, unrolled), scored

    def _vocab_loss(
        self,
        h: Tensor,
        head: Tensor,
        ids: Tensor | None,
        taken: TakenRows,
        per_row: Tensor,
        candidates: Candidates | None,
        transform: LogitTransform = IDENTITY,
    ) -> RowLoss:
        target, offset = self._target_head[0], None
        if candidates is not None:
            head, ids = rows_among(candidates, head, ids)
            target, offset = target.index_select(0, candidates.ids), candidates.offset
        inputs = LossInputs(
            h,
            head,
            taken.teacher,
            taken.teacher_row,
            target,
            ids,
            per_row,
            offset,
            taken.facts if candidates is None else None,
            self._transform,
            transform,
        )
        return vocab_loss(inputs, self.settings.loss)
