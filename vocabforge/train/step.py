"""Forward pass of training, wrapped by the strategies: unroll, vocabulary losses, feature loss.

The loss is sum_k w_k / N_k * sum over counted rows of step k, with N_k the number of counted rows of the
WHOLE batch, over all processes and micro-batches. Its sum over them, and the gradient, therefore do not
depend on the division of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..models.drafters.interface import Drafter
from ..models.heads.router import cluster_rows
from ..models.target.logits import IDENTITY, LogitTransform
from .capture.online import CapturedBatch
from .config import HeadsConfig, MemoryConfig, TTTConfig
from .heads.draft_heads import ROUTER, configured
from .heads.states import RouterLoss, best_tokens, labels_of, router_losses, states_fed
from .loss.fused import LossInputs
from .loss.pace import label_chance, pace_weights
from .loss.rows import StepFigures, TakenRows, confidence_loss, feature_loss, split_figures, take_rows
from .loss.vocab import LossOptions, RowLoss, joined, vocab_loss
from .ttt import TTTStep, unroll

# (token weight, feature weight, feature noise): EAGLE-1 learns mainly to predict hidden states.
_PUBLISHED: Mapping[str, tuple[float, float, float]] = {"eagle1": (0.1, 1.0, 0.1)}
_WEIGHTS = ("token_weight", "feature_weight", "feature_noise")


def loss_weights(ttt: TTTConfig, kind: str) -> dict[str, float]:
    """Return the settings of ``ttt`` whose defaults depend on the kind of drafter."""
    defaults = zip(_WEIGHTS, _PUBLISHED.get(kind, (1.0, 0.0, 0.0)))
    given = ((name, getattr(ttt, name), default) for name, default in defaults)
    return {name: default if value is None else value for name, value, default in given}


class TrainStep(nn.Module):
    """Module that computes loss and figures of one micro-batch.

    Args:
        drafter: trained, or frozen with ``freeze``.
        heads: low-rank scorers and a router trained on the drafter's states, by name; their settings are
            those of ``heads_config``.
        target_head: (V, H), frozen; not registered, so that wrappers do not move, cast or broadcast it.
        transform: logit transform of the target.

    Attributes:
        weights: see :func:`loss_weights`.
    """

    def __init__(
        self,
        drafter: Drafter,
        heads: nn.ModuleDict,
        target_head: Tensor,
        ttt: TTTConfig,
        heads_config: HeadsConfig | None = None,
        memory: MemoryConfig | None = None,
        *,
        freeze: bool = False,
        transform: LogitTransform = IDENTITY,
    ) -> None:
        super().__init__()
        self.drafter: Any = drafter
        self.heads: Any = heads
        self._heads_config, self.memory = heads_config or HeadsConfig(), memory or MemoryConfig()
        self.ttt, self.freeze, self.weights = ttt, freeze, loss_weights(ttt, drafter.kind)
        self._loss = LossOptions(self.memory.loss, self.memory.chunk_mb)
        self.drafter.requires_grad_(not freeze)
        self._target_head = (target_head,)
        self._transform = transform
        if ROUTER in heads:  # cluster of each head row, also not registered
            router: Any = heads[ROUTER]
            self._cluster = (cluster_rows(router.assignment, drafter.target_ids),)

    def forward(
        self,
        batch: CapturedBatch,
        steps: int,
        rows: Tensor,
        noise: Tensor | None = None,
        anchors: Tensor | None = None,
    ) -> tuple[Tensor, tuple[StepFigures, ...], dict[str, RowLoss | RouterLoss]]:
        """Compute loss and figures of one micro-batch.

        Args:
            batch: captured rows (B, T).
            steps: K.
            rows: (K,) fp32 counted rows of the whole batch, by draft step.
            noise: (B, T, .) added to the drafter's input features.
            anchors: (B, A) positions of a parallel drafter's blocks.

        Returns:
            The loss, the figures of each draft step, and the row losses of each head (none in evaluation
            mode).
        """
        drafter = self.drafter
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.freeze):
            unrolled = list(
                unroll(
                    drafter,
                    batch,
                    steps,
                    noise=noise,
                    attention=self.memory.attention,
                    checkpointing=self.memory.checkpointing,
                    anchors=anchors,
                )
            )
            taken = take_rows(unrolled, batch)
            h = drafter.read(taken.g)  # (M, H)
        per_row = self.ttt.decay ** taken.step.float() / rows.clamp(min=1)[taken.step]  # (M,)
        own = self._own_loss(h, taken, rows, per_row)
        figures = split_figures(own, taken, unrolled, batch.input_ids.shape[1])
        if not self.training:
            return self.weights["token_weight"] * own.total, figures, {}
        heads = self._head_losses(batch, noise, unrolled, h, taken, rows, per_row)
        terms = [head.weight * heads[name].total for name, head in configured(self._heads_config).items()]
        if not self.freeze:
            terms += self._drafter_terms(h, taken, own, per_row)
        return torch.stack(terms).sum(), figures, heads

    def _head_losses(
        self,
        batch: CapturedBatch,
        noise: Tensor | None,
        unrolled: list[TTTStep],
        h: Tensor,
        taken: TakenRows,
        rows: Tensor,
        per_row: Tensor,
    ) -> dict[str, RowLoss | RouterLoss]:
        row = h[:, : self.drafter.config.hidden_size]  # without DSpark's part of the previous token
        losses: dict[str, RowLoss | RouterLoss] = {
            name: vocab_loss(
                self._inputs(head.project(row), head.head_weight, None, taken, per_row), self._loss
            )
            for name, head in self.heads.items()
            if name != ROUTER
        }
        if ROUTER in self.heads:
            # On a frozen drafter, as DynaSpec trains it: the mean over all rows.
            weight = torch.ones_like(per_row) / rows.sum().clamp(min=1) if self.freeze else per_row
            losses[ROUTER] = self._router_loss(batch, noise, unrolled, row, weight)
        return losses

    def _drafter_terms(self, h: Tensor, taken: TakenRows, own: RowLoss, per_row: Tensor) -> list[Tensor]:
        terms = [self.weights["token_weight"] * own.total]
        if weight := self.weights["feature_weight"]:
            terms.append(weight * feature_loss(taken, per_row))
        confidence = self.drafter.confidence(h)
        if self.ttt.confidence_weight and confidence is not None:
            terms.append(self.ttt.confidence_weight * confidence_loss(confidence, own, per_row))
        return terms

    def _own_loss(self, h: Tensor, taken: TakenRows, rows: Tensor, per_row: Tensor) -> RowLoss:
        """Compute the drafter's own vocabulary loss; ``rows`` as in :meth:`forward`."""
        parts = self._own_inputs(h, taken, per_row)
        if self.ttt.weighting == "d-pace":
            chance = torch.cat([label_chance(part, self.memory.chunk_mb << 20) for part in parts])
            weight = pace_weights(chance, taken.step, taken.place) / rows.clamp(min=1)[taken.step]
            sizes = [len(part.draft) for part in parts]
            parts = [replace(part, weight=own) for part, own in zip(parts, weight.split(sizes))]
        losses = [vocab_loss(part, self._loss) for part in parts]
        return losses[0] if len(losses) == 1 else joined(losses)

    def _own_inputs(self, h: Tensor, taken: TakenRows, per_row: Tensor) -> list[LossInputs]:
        """Return the loss inputs of the drafter: one part, or one per step if the steps' LM heads differ."""
        drafter, sizes = self.drafter, list(taken.sizes)
        reduced = len(drafter.target_ids) != len(self._target_head[0])
        ids = drafter.target_ids if reduced else None
        own: dict[str, Any] = {
            "draft_transform": drafter.transform,
            "loss": self.ttt.mixture,
            "bias_head": drafter.bias_weight,
        }
        if not drafter.heads_differ:
            inputs = self._inputs(h, drafter.head_weight, ids, taken, per_row)
            return [replace(inputs, label=taken.label, **own)]
        split = (each.split(sizes) for each in (h, taken.teacher_row, taken.label, per_row))
        return [
            replace(
                self._inputs(
                    part, drafter.head_rows(step), ids, replace(taken, teacher_row=teachers), weight
                ),
                label=label,
                **own,
            )
            for step, (part, teachers, label, weight) in enumerate(zip(*split))
        ]

    def _router_loss(
        self, batch: CapturedBatch, noise: Tensor | None, unrolled: list[TTTStep], h: Tensor, per_row: Tensor
    ) -> RouterLoss:
        drafter, router, cluster = self.drafter, self.heads[ROUTER], self._cluster[0]
        settings: Any = self._heads_config.router
        with torch.set_grad_enabled(not (settings.detach or self.freeze)):
            read = batch.states(drafter.reads)
            first = drafter.fuse(read if noise is None else read + noise.to(read))
            fed = [state for _, state in states_fed(drafter, batch, first, unrolled)]
        tokens = torch.cat([state.tokens for state in fed])
        scores = router(F.embedding(tokens, drafter.embedding), torch.cat([state.previous for state in fed]))
        best = best_tokens(h, drafter.head_weight, len(cluster), settings.top_n)
        labels = labels_of(best, cluster, router.clusters)  # (M, clusters)
        losses = router_losses(scores, labels)
        correct = labels.gather(1, scores.argmax(-1, keepdim=True))[:, 0]
        return RouterLoss((per_row * losses).sum(), losses.detach(), correct)

    def _inputs(
        self, h: Tensor, head: Tensor, ids: Tensor | None, taken: TakenRows, per_row: Tensor
    ) -> LossInputs:
        return LossInputs(
            h,
            head,
            taken.teacher,
            taken.teacher_row,
            self._target_head[0],
            ids,
            per_row,
            taken.facts,
            self._transform,
        )
