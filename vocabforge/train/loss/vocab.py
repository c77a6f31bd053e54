"""The loss of draft rows against the target's distribution or the data, without vocabulary-wide logits.

For draft row i with teacher hidden state t_i, over the draft vocabulary (R tokens, all V of them or a subset)::

    z = f(U t_i),  s = g(W d_i),  p = softmax(z over the R tokens),  q = softmax(s)
    CE_i = -sum_v p(v) log q(v),      d CE_i / d s = q - p

with the target's logit transform f, and g = f where the draft head is the target's, else the identity. That is the
default; :mod:`.kinds` has the other losses.
``naive`` is that formula by autograd and holds (M, R) tensors; ``fused`` works through chunks
of rows, computes ``q - p`` and its products with W and d in the same pass, and keeps only (M, H') and (R, H').
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

# (rows, R) or (rows, V) fp32 tensors that the naive formula holds at its peak, backward pass included.
_NAIVE_TENSORS, _MIXED_TENSORS = 4, 6
_MIB = 1 << 20


@dataclass(frozen=True)
class LossOptions:
    """How the loss is computed.

    Attributes:
        impl: ``auto`` is naive if its tensors fit into ``chunk_mb``.
        chunk_mb: workspace of the fused loss in MiB; at least one row is always taken.
        compiled: fuse the element-wise part with ``torch.compile``; None: on CUDA with Triton.
    """

    impl: Literal["auto", "naive", "fused"] = "auto"
    chunk_mb: int = 256
    compiled: bool | None = None


@dataclass(frozen=True)
class RowLoss:
    """The loss and what every row contributed.

    Attributes:
        total: fp32 scalar with gradient, sum_i weight_i * loss_i; the soft cross-entropy CE_i of ``outside`` rows is 0.
        losses: fp32 (M,) CE_i without gradient, whatever the loss, 0 where ``outside``.
        outside: bool (M,) the target's argmax over all V tokens is not in the draft vocabulary.
        correct: bool (M,) the draft's argmax is the target's; of equal maxima the first decides.
        overlap: fp32 (M,) sum_v min(p(v), q(v)), p over all V tokens: the chance that sampling accepts.
        ceiling: fp32 (M,) the target's mass inside the draft vocabulary, the highest possible overlap. Both are NaN
            where the loss is an estimate.
    """

    total: Tensor
    losses: Tensor
    outside: Tensor
    correct: Tensor
    overlap: Tensor
    ceiling: Tensor


def joined(parts: Sequence[RowLoss]) -> RowLoss:
    """The losses of several sets of rows as one."""
    total = torch.stack([part.total for part in parts]).sum()
    rows = [
        torch.cat([getattr(part, one.name) for part in parts])
        for one in fields(RowLoss)
        if one.name != "total"
    ]
    return RowLoss(total, *rows)


def vocab_loss(inputs: LossInputs, options: LossOptions) -> RowLoss:
    """The loss of M draft rows; gradients reach ``inputs.draft`` and the draft head's parts only.

    Products are computed in the head's type (autocast's under autocast) and accumulated in fp32; the rest is fp32.
    """
    facts = None if inputs.target_ids is None else inputs.facts  # of use where not all V logits are needed
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
    """Bytes that the naive formula holds for M rows of R + V columns, roughly."""
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
            shared = len(x.teacher) <= len(x.teacher_row)  # each position once, or each row's own
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
