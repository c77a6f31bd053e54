"""Loss of draft rows against the target's distribution or the data, without storing full logits.

For draft row i with teacher hidden state t_i, over the draft vocabulary (R tokens, all V or a subset)::

    z = f(U t_i),  s = g(W d_i),  p = softmax(z over the R tokens),  q = softmax(s)
    CE_i = -sum_v p(v) log q(v),      d CE_i / d s = q - p

with the target's logit transform f; g = f if the draft head is the target's, otherwise g is the identity.
This is the default; :mod:`.kinds` has the other losses. ``naive`` applies autograd to this formula and stores
(M, R) tensors. ``fused`` processes chunks of rows, computes ``q - p`` and its products with W and d in the
same pass, and keeps only (M, H') and (R, H').
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from ...models.device import has_triton
from ...models.target.logits import accumulation, scores
from .fused import FusedVocabLoss, LossInputs, teacher_terms
from .kinds import KL, Mixture, TeacherLogs, row_sums, teacher_logs, value_of

# Number of (rows, R) or (rows, V) fp32 tensors at the peak of the naive formula, including the backward pass.
_NAIVE_TENSORS, _MIXED_TENSORS = 4, 6
_MIB = 1 << 20


@dataclass(frozen=True)
class LossOptions:
    """Implementation of the loss.

    Attributes:
        impl: ``auto`` is naive if its tensors fit into ``chunk_mb``.
        chunk_mb: workspace of the fused loss in MiB; a chunk has at least one row.
        compiled: fuse the element-wise part with ``torch.compile``; None: only on CUDA with Triton.
    """

    impl: Literal["auto", "naive", "fused"] = "auto"
    chunk_mb: int = 256
    compiled: bool | None = None


@dataclass(frozen=True)
class RowLoss:
    """Loss and the contributions of all rows.

    Attributes:
        total: fp32 scalar with gradient, sum_i weight_i * loss_i; the soft cross-entropy CE_i of ``outside``
            rows is 0.
        losses: fp32 (M,) CE_i without gradient, for any loss; 0 if ``outside``.
        outside: bool (M,) the target's argmax over all V tokens is not in the draft vocabulary.
        correct: bool (M,) the draft's argmax equals the target's; the first of equal maxima is used.
        overlap: fp32 (M,) sum_v min(p(v), q(v)) with p over all V tokens: the acceptance probability in
            sampling.
        ceiling: fp32 (M,) target mass inside the draft vocabulary, the highest possible overlap. Both are NaN
            if the loss is an estimate.
    """

    total: Tensor
    losses: Tensor
    outside: Tensor
    correct: Tensor
    overlap: Tensor
    ceiling: Tensor


def joined(parts: Sequence[RowLoss]) -> RowLoss:
    """Concatenate the losses of several sets of rows."""
    total = torch.stack([part.total for part in parts]).sum()
    rows = [
        torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(RowLoss)
        if field.name != "total"
    ]
    return RowLoss(total, *rows)


def vocab_loss(inputs: LossInputs, options: LossOptions) -> RowLoss:
    """Compute the loss of M draft rows; only ``inputs.draft`` and the parts of the draft head get gradients.

    Products use the head's dtype (autocast's under autocast) and are accumulated in fp32; everything else is
    fp32.
    """
    facts = None if inputs.target_ids is None else inputs.facts  # useful only if not all V logits are needed
    inputs = replace(
        inputs, teacher=inputs.teacher.detach(), target_head=inputs.target_head.detach(), facts=facts
    )
    if _chosen(inputs, options) == "naive":
        return _naive(inputs)
    draft, head, bias = inputs.draft, inputs.draft_head, inputs.bias_head
    want = torch.is_grad_enabled()
    compiled = draft.is_cuda and has_triton() if options.compiled is None else options.compiled
    parts = FusedVocabLoss.apply(draft, head, bias, inputs, options.chunk_mb * _MIB, compiled, want)
    return RowLoss(*parts)


def naive_bytes(rows: int, columns: int, loss: Mixture = KL) -> int:
    """Estimate the bytes that the naive formula stores for M rows of R + V columns."""
    return 4 * (_NAIVE_TENSORS if loss == KL else _MIXED_TENSORS) * rows * columns


def _chosen(inputs: LossInputs, options: LossOptions) -> str:
    if options.impl != "auto":
        return options.impl
    teacher = inputs.target_head if inputs.facts is None else inputs.draft_head
    held = naive_bytes(len(inputs.draft), len(inputs.draft_head) + len(teacher), inputs.loss)
    return "naive" if held <= options.chunk_mb * _MIB else "fused"


def _naive(x: LossInputs) -> RowLoss:
    dtypes = x.product_dtypes()
    out = accumulation(torch.promote_types(*dtypes))
    with torch.autocast(x.draft.device.type, enabled=False):
        with torch.no_grad():
            shared = len(x.teacher) <= len(x.teacher_row)  # compute each position once, or per row
            own = slice(None) if shared else x.teacher_row
            z = x.transform(scores(x.teacher[own], x.teacher_head.to(dtypes[1]), out))
            best, log_sum = (None, None) if x.facts is None else (x.facts.best[own], x.facts.log_sum[own])
            p, mass, column = teacher_terms(z, x.target_ids, best, log_sum)
            logs = None if x.loss == KL else teacher_logs(z, x.target_ids, log_sum)
            if shared:
                p, mass, column = p[x.teacher_row], mass[x.teacher_row], column[x.teacher_row]
                logs = None if logs is None else TeacherLogs(*(each[x.teacher_row] for each in logs))
            inside = column >= 0
        logits = x.draft_transform(scores(x.draft, x.whole_head.to(dtypes[0]), out))  # (M, R)
        log_q = logits.log_softmax(-1)
        losses = -(p * log_q).sum(-1)
        losses = torch.where(inside, losses, 0.0)
        values = losses
        if logs is not None:
            values = value_of(x.loss, row_sums(log_q, logs, column, x.label_column))
        with torch.no_grad():
            correct = logits.argmax(-1) == column
            overlap = torch.minimum(p * mass[:, None], log_q.exp()).sum(-1)
        total = (values * x.weight).sum()
    return RowLoss(total, losses.detach().float(), ~inside, correct, overlap.float(), mass.float())
