"""Medusa-2: a target trained together with its Medusa heads (Cai et al. 2024, sections 2.2.2 and 2.3.2).

The loss is L_target + lambda_0 sum_k lambda_k L_k. The heads' losses L_k use the states of the current
target. L_target is a mean over the positions that predict the assistant's tokens. The decoder's layers and
its final norm are trained. Embedding and LM head stay frozen, so target and drafter still share them (our
choice).
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.artifact import MANIFEST, write_artifact
from ..core.errors import UsageError
from ..models.target.documents import document_spans, gather, plan_passes, scatter
from ..models.target.hf import HFTarget
from .capture.online import CapturedBatch, RowBatch
from .loss.fused import LossInputs
from .loss.kinds import Mixture
from .loss.vocab import LossOptions, RowLoss, vocab_loss
from .ttt import shift_left

_COPIED = (".json", ".jinja", ".txt", ".model")  # tokenizer and settings


def target_rows(rows: RowBatch) -> Tensor:
    """Return a mask bool (B, T): the next token is the assistant's and in the same document."""
    document = rows.document
    return shift_left(rows.loss_mask, 1) & (shift_left(document, 1) == document) & (document != 0)


class JointTarget(nn.Module):
    """Trained target in fp32; ``loss`` is L_target. Its parameters are those of the decoder.

    Raises:
        UsageError: the target is quantised.
    """

    def __init__(self, target: HFTarget, loss: Mixture, options: LossOptions) -> None:
        super().__init__()
        if not all(p.is_floating_point() for p in target.model.parameters()):
            raise UsageError("quantised targets cannot be trained", got=target.source, remedy="drop joint")
        self._target, self._loss, self._options = target, loss, options
        self.decoder: Any = target.backbone.requires_grad_(True)
        for table in (target.embedding, target.head_weight):
            table.requires_grad_(False)

    def states(self, batch: CapturedBatch) -> CapturedBatch:
        """Return the batch with hidden states of the current target, with gradients."""
        hidden = torch.zeros_like(batch.hidden, dtype=torch.float32)
        for group in plan_passes(document_spans(batch.document)):
            scatter(hidden, self._target.forward(gather(batch.input_ids, group), ())[1], group)
        return replace(batch, hidden=hidden, facts=None)

    def loss(
        self, now: CapturedBatch, original: CapturedBatch, count: Tensor | float, loss: Mixture | None = None
    ) -> RowLoss:
        """Compute the loss of ``now`` (:meth:`states`), a sum divided by ``count``.

        ``correct`` of the result marks rows with the same best token as ``original``.
        """
        rows, head, transform = target_rows(now), self._target.head_weight, self._target.transform
        draft, label = now.hidden[rows], shift_left(now.input_ids, 1)[rows]
        weight, own = draft.new_ones(len(draft)) / count, torch.arange(len(draft), device=draft.device)
        further: dict[str, Any] = {"transform": transform, "draft_transform": transform, "label": label}
        inputs = LossInputs(draft, head, original.hidden[rows], own, head, None, weight, **further)
        return vocab_loss(replace(inputs, loss=loss or self._loss), self._options)

    def sums(self, batch: CapturedBatch) -> Tensor:
        """Return (4,): nats of the original and this target on the text, equal best tokens, token count."""
        before, now = (self.loss(each, batch, 1.0, (("ce", 1.0),)) for each in (batch, self.states(batch)))
        return torch.tensor([before.total, now.total, now.correct.sum(), len(now.losses)])

    def save(self, path: Path, source: Path, meta: dict[str, Any], fingerprint: str) -> None:
        """Write an fp32 Hugging Face folder with the tokenizer of ``source``, whose fingerprint is given."""
        parents = {"target": fingerprint}
        with write_artifact(path, "target", meta, parents=parents, overwrite=True) as temporary:
            for file in source.iterdir():
                if file.suffix in _COPIED and file.name != MANIFEST and ".index." not in file.name:
                    shutil.copyfile(file, temporary / file.name)
            self._target.model.save_pretrained(temporary)
