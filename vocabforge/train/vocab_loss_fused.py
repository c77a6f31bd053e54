"""The fused vocabulary loss: forward and backward in one pass over chunks of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .vocab_loss_plan import Chunk, Costs, make_plan
from .vocab_loss_terms import accumulation, product, row_function, scores, teacher_function

# Element-wise results that live at once beside the logits of one rank of rows.
_ROW_TEMPORARIES = 3
# Share of the workspace for one block of the draft head's gradient.
_HEAD_SHARE = 16


@dataclass(frozen=True)
class Inputs:
    """The arguments of :func:`vocabforge.train.vocab_loss.vocab_loss`.

    Attributes:
        draft: (M, H') draft states as their head reads them.
        draft_head: (R, H') rows that score draft tokens.
        teacher: (P, H) target hidden states as the LM head reads them; frozen.
        teacher_row: int64 (M,) row of ``teacher`` of each draft row; several may share one.
        target_head: (V, H) the target's LM head; frozen.
        target_ids: int64 (R,) ascending token ids of ``draft_head``'s rows; None: all V tokens.
        weight: fp32 (M,), constant.
        offset: fp32 (V,) added to the target's logits and, for the same tokens, to the draft's; the V rows of
            ``target_head`` then stand for more tokens (see :mod:`.candidates`). None: for themselves.
    """

    draft: Tensor
    draft_head: Tensor
    teacher: Tensor
    teacher_row: Tensor
    target_head: Tensor
    target_ids: Tensor | None
    weight: Tensor
    offset: Tensor | None = None

    @property
    def draft_offset(self) -> Tensor | None:
        """(R,) offsets of the draft head's rows."""
        if self.offset is None or self.target_ids is None:
            return self.offset
        return self.offset[self.target_ids]

    def product_dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """What the products with the draft head and with the LM head read: autocast's type, else the head's."""
        kind = self.draft.device.type
        heads = self.draft_head.dtype, self.target_head.dtype
        if not torch.is_autocast_enabled(kind):
            return heads
        cast = torch.get_autocast_dtype(kind)
        return tuple(d if d == torch.float64 else cast for d in heads)  # type: ignore[return-value]


class FusedVocabLoss(torch.autograd.Function):
    """(total, losses, outside, correct, overlap, ceiling); the gradients are made in the forward pass.

    ``total`` is linear in the loss, so the backward pass only scales what is kept: (M, H') and, where the
    draft head is trained, (R, H').
    """

    @staticmethod
    def forward(
        ctx: Any, draft: Tensor, draft_head: Tensor, inputs: Inputs, budget: int, compiled: bool, want: bool
    ) -> tuple[Tensor, ...]:
        dtypes = inputs.product_dtypes()
        with torch.autocast(draft.device.type, enabled=False):
            work = _Work(inputs, dtypes, want and draft.requires_grad, want and draft_head.requires_grad)
            work.run(budget, compiled)
        ctx.save_for_backward(work.grad_draft, work.grad_head)
        ctx.set_materialize_grads(False)
        total = (work.losses * inputs.weight).sum()
        rest = (work.losses.float(), work.outside, work.correct, work.overlap.float(), work.ceiling.float())
        ctx.mark_non_differentiable(*rest)
        return (total, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_rest: Any) -> tuple[Tensor | None, ...]:
        draft, head = ctx.saved_tensors
        scaled = [None if g is None or grad is None else g * grad.to(g.dtype) for g in (draft, head)]
        return (*scaled, None, None, None, None)


class _Work:
    """One call's results, filled chunk by chunk."""

    def __init__(
        self, inputs: Inputs, dtypes: tuple[torch.dtype, torch.dtype], draft_grad: bool, head_grad: bool
    ) -> None:
        self.x = inputs
        self.dtype = dtypes[0]
        self.out = accumulation(torch.promote_types(*dtypes))
        self.head = inputs.draft_head.detach().to(dtypes[0])  # cast once, not in every chunk
        self.target_head = inputs.target_head.to(dtypes[1])
        self.offset = inputs.draft_offset
        rows, device = len(inputs.draft), inputs.draft.device
        self.losses = torch.zeros(rows, dtype=self.out, device=device)
        self.overlap = torch.zeros(rows, dtype=self.out, device=device)
        self.ceiling = torch.zeros(rows, dtype=self.out, device=device)
        self.outside = torch.zeros(rows, dtype=torch.bool, device=device)
        self.correct = torch.zeros(rows, dtype=torch.bool, device=device)
        self.grad_draft = torch.zeros_like(inputs.draft) if draft_grad else None
        # Summed over chunks in fp32 whatever the head's type.
        self.head_sum = torch.zeros(self.head.shape, dtype=self.out, device=device) if head_grad else None

    @property
    def grad_head(self) -> Tensor | None:
        return None if self.head_sum is None else self.head_sum.to(self.x.draft_head.dtype)

    def run(self, budget: int, compiled: bool) -> None:
        plan = make_plan(self.x.teacher_row.cpu().numpy(), self._costs(), budget)
        device = self.x.draft.device
        order, teachers = (torch.from_numpy(ids).to(device) for ids in (plan.rows, plan.teachers))
        block = max(1, budget // (_HEAD_SHARE * self.out.itemsize * self.head.shape[1]))
        for chunk in plan.chunks:
            self._chunk(chunk, order[chunk.rows], teachers[chunk.teachers], compiled, block)

    def _costs(self) -> Costs:
        """Bytes of workspace: logits, distributions and temporaries of :mod:`.vocab_loss_terms`."""
        size, full, some = self.out.itemsize, len(self.target_head), len(self.head)
        casts = [d.itemsize if d != self.out else 0 for d in (self.dtype, self.target_head.dtype)]
        held = 2 * full if self.x.target_ids is None else 2 * full + 3 * some
        held += 0 if self.offset is None else some
        states = self.x.teacher.shape[-1] + 2 * self.x.draft.shape[-1]
        return Costs(
            teacher=size * (held + _ROW_TEMPORARIES * some + states) + casts[1] * full,
            row=(size + casts[0]) * some + 2 * size * states,
        )

    def _chunk(self, chunk: Chunk, rows: Tensor, teachers: Tensor, compiled: bool, block: int) -> None:
        x = self.x
        z = scores(x.teacher[teachers], self.target_head, self.out)  # (C, V)
        p, full, best, inside = teacher_function(compiled)(z, x.target_ids, self.offset)
        del z
        # log q(v) of a token itself is that of all that its column stands for, less the offset.
        shift = p.new_zeros(len(p)) if self.offset is None else p @ self.offset.to(p.dtype)  # (C,)
        ceiling = torch.full_like(shift, torch.nan) if full is None else full.sum(-1)  # (C,)
        draft = x.draft.detach()[rows].to(self.dtype)  # (m, H')
        s = scores(draft, self.head, self.out)  # (m, R); becomes its own gradient
        weight = x.weight[rows]
        terms = row_function(compiled)
        at = 0
        for count in chunk.ranks:
            here, ids = slice(at, at + count), rows[at : at + count]
            losses, overlap, found, delta = terms(
                s[here], p[:count], None if full is None else full[:count], self.offset
            )
            known = inside[:count]
            self.losses[ids] = torch.where(known, losses + shift[:count], 0.0)
            self.overlap[ids], self.ceiling[ids] = overlap, ceiling[:count]
            self.outside[ids] = ~known
            self.correct[ids] = (found if x.target_ids is None else x.target_ids[found]) == best[:count]
            torch.mul(delta, torch.where(known, weight[here], 0.0)[:, None], out=s[here])
            del delta
            at += count
        self._gradients(s, rows, draft, block)

    def _gradients(self, delta: Tensor, rows: Tensor, draft: Tensor, block: int) -> None:
        """Products of d loss / d s (m, R) with the head and with the draft states (``block`` head rows a time)."""
        if self.grad_draft is None and self.head_sum is None:
            return
        delta = delta.to(self.dtype)
        if self.grad_draft is not None:
            self.grad_draft[rows] = product(delta, self.head, self.out).to(self.grad_draft.dtype)
        if self.head_sum is not None:
            for some in torch.arange(len(self.head)).split(block):
                part = slice(int(some[0]), int(some[-1]) + 1)
                self.head_sum[part] += product(delta[:, part].t(), draft, self.out)
