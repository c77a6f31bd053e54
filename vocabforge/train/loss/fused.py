"""The mathematics of the vocabulary loss on one block of rows, and the fused loss over chunks of rows.

Draft rows that share a teacher are taken together, so that the teacher is computed once. Inside a chunk the teachers
come by falling number of rows, and the rows by their rank within their teacher: the rank-j rows of a chunk then
belong to its first n_j teachers, and both are plain slices, with nothing of size (rows, V) gathered.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...models.target.logits import IDENTITY, LogitTransform


def scores(states: Tensor, head: Tensor, out: torch.dtype) -> Tensor:
    """Logits ``states @ head.T``, read in the head's type: (N, H), (R, H) -> (N, R) of type ``out``."""
    return product(states.to(head.dtype), head.t(), out)


def product(a: Tensor, b: Tensor, out: torch.dtype) -> Tensor:
    """``a @ b`` accumulated in fp32 and given as ``out`` (fp32, or fp64 for fp64).

    CUDA writes fp32 where it needs no autograd; elsewhere a product of bf16 rounds to bf16 once, at its end.
    """
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if a.is_cuda and out == torch.float32 and a.dtype != out and not graph:
        return torch.mm(a, b, out_dtype=out)
    return (a @ b).to(out)


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """fp32, or fp64 for fp64."""
    return torch.promote_types(dtype, torch.float32)


def teacher_terms(
    z: Tensor, target_ids: Tensor | None, offset: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """What draft rows need of their teacher.

    Args:
        z: (C, V) target logits.
        target_ids: (R,) columns of the draft vocabulary; None: all of them.
        offset: (R,) fp32, if a column stands for further tokens (:mod:`.candidates`); it counts in sums only.

    Returns:
        p (C, R) renormalised over the draft vocabulary; the same tokens' probabilities over all V (C, R), None with
        an ``offset``; its argmax token (C,); bool (C,), that argmax is in the draft vocabulary.
    """
    best = z.argmax(-1)  # the first of equal maxima
    if target_ids is None:
        some, inside = z, torch.ones_like(best, dtype=torch.bool)
    else:
        some = z[:, target_ids]
        # Equal values alone would not do: a draft token may merely tie with the argmax.
        inside = target_ids[some.argmax(-1)] == best
    if offset is not None:
        return (some + offset).softmax(-1), None, best, inside
    p = some.softmax(-1)
    full = p if target_ids is None else (some - z.logsumexp(-1, keepdim=True)).exp()
    return p, full, best, inside


def row_terms(
    s: Tensor,
    p: Tensor,
    full: Tensor | None,
    offset: Tensor | None = None,
    transform: LogitTransform = IDENTITY,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draft rows against their teachers.

    Args:
        s: (N, R) products with the draft head.
        p, full: (N, R) of :func:`teacher_terms`.
        offset: (R,) likewise.
        transform: of ``s`` to draft logits.

    Returns:
        CE (N,) of p and q; sum_v min(full, q) (N,), NaN without ``full``; argmax column (N,); q - p (N, R), through
        the transform: the gradient of CE by ``s``.
    """
    found = s.argmax(-1)
    logits = transform(s)
    log_q = logits.log_softmax(-1) if offset is None else (logits + offset).log_softmax(-1)
    losses = -(p * log_q).sum(-1)
    q = log_q.exp()
    overlap = torch.full_like(losses, torch.nan) if full is None else torch.minimum(full, q).sum(-1)
    return losses, overlap, found, transform.gradient(q - p, logits)


@functools.cache
def row_function(compiled: bool) -> Callable[..., Any]:
    """:func:`row_terms`, as one compiled kernel or as it stands."""
    return torch.compile(row_terms, dynamic=True) if compiled else row_terms


@functools.cache
def teacher_function(compiled: bool) -> Callable[..., Any]:
    """:func:`teacher_terms`, compiled or as it stands."""
    return torch.compile(teacher_terms, dynamic=True) if compiled else teacher_terms


Int = NDArray[np.int64]


@dataclass(frozen=True)
class LossCosts:
    """Workspace in bytes: of a chunk's ``teacher`` and of its draft ``row``."""

    teacher: int
    row: int


@dataclass(frozen=True)
class LossChunk:
    """A slice of the plan's rows and teachers; ``ranks[j]`` rows have rank j within their teacher."""

    rows: slice
    teachers: slice
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LossPlan:
    """The order of work: ``rows`` (M,) draft rows, each once, and ``teachers`` (G,) of every group of rows."""

    rows: Int
    teachers: Int
    chunks: tuple[LossChunk, ...]


def make_plan(teacher_row: Int, costs: LossCosts, budget: int) -> LossPlan:
    """Chunks of at most ``budget`` bytes, but at least one row; ``teacher_row`` is (M,)."""
    if len(teacher_row) == 0:
        return LossPlan(np.zeros(0, np.int64), np.zeros(0, np.int64), ())
    by_teacher = np.argsort(teacher_row, kind="stable")
    ordered = teacher_row[by_teacher]
    rank = _rank_in_runs(ordered)
    most = max(1, (budget - costs.teacher) // costs.row)  # rows of one teacher beyond it form a further group
    first = rank % most == 0
    group, rank = np.cumsum(first) - 1, rank % most
    counts = np.bincount(group)
    place = np.empty_like(counts)
    falling = np.argsort(-counts, kind="stable")
    place[falling] = np.arange(len(counts))
    group, counts, teachers = place[group], counts[falling], ordered[first][falling]

    bounds = _bounds(costs.teacher + counts * costs.row, budget)
    chunk_of_group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = np.lexsort((group, rank, chunk_of_group[group]))
    ends = np.concatenate([[0], np.cumsum(counts)])
    chunks = tuple(
        LossChunk(slice(int(ends[a]), int(ends[b])), slice(int(a), int(b)), _ranks(counts[a:b]))
        for a, b in itertools.pairwise(bounds)
    )
    return LossPlan(by_teacher[order], teachers, chunks)


def _rank_in_runs(ordered: Int) -> Int:
    """0, 1, 2, ... within every run of equal values."""
    index = np.arange(len(ordered))
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def _bounds(sizes: Int, budget: int) -> list[int]:
    """Cut groups into runs of at most ``budget`` bytes, greedily: 0, ..., len(sizes)."""
    total = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        at = bounds[-1]
        before = int(total[at - 1]) if at else 0
        bounds.append(max(at + 1, int(np.searchsorted(total, before + budget, side="right"))))
    return bounds


def _ranks(counts: Int) -> tuple[int, ...]:
    """How many of the groups have a row of rank 0, 1, ..."""
    return tuple(int((counts > j).sum()) for j in range(int(counts.max())))


# Element-wise results that live at once beside the logits of one rank of rows.
_ROW_TEMPORARIES = 3
# Share of the workspace for one block of the draft head's gradient.
_HEAD_SHARE = 16


@dataclass(frozen=True)
class LossInputs:
    """The arguments of :func:`vocabforge.train.loss.vocab.vocab_loss`.

    Attributes:
        draft: (M, H') draft states as their head reads them.
        draft_head: (R, H') rows that score draft tokens.
        teacher: (P, H) target hidden states as the LM head reads them; frozen.
        teacher_row: int64 (M,) row of ``teacher`` of each draft row.
        target_head: (V, H) the target's LM head; frozen.
        target_ids: int64 (R,) ascending ids of ``draft_head``'s rows; None: all V.
        weight: fp32 (M,), constant.
        offset: fp32 (V,) added to target's and draft's logits if rows stand for more tokens (:mod:`.candidates`).
        transform, draft_transform: of the products with ``target_head`` and with ``draft_head`` to logits.
    """

    draft: Tensor
    draft_head: Tensor
    teacher: Tensor
    teacher_row: Tensor
    target_head: Tensor
    target_ids: Tensor | None
    weight: Tensor
    offset: Tensor | None = None
    transform: LogitTransform = IDENTITY
    draft_transform: LogitTransform = IDENTITY

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
    """(total, losses, outside, correct, overlap, ceiling); gradients are made in the forward pass.

    ``total`` is linear in the loss, so the backward pass only scales (M, H') and (R, H').
    """

    @staticmethod
    def forward(
        ctx: Any,
        draft: Tensor,
        draft_head: Tensor,
        inputs: LossInputs,
        budget: int,
        compiled: bool,
        want: bool,
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
    def __init__(
        self, inputs: LossInputs, dtypes: tuple[torch.dtype, torch.dtype], draft_grad: bool, head_grad: bool
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

    def _costs(self) -> LossCosts:
        """Bytes of workspace: logits, distributions and temporaries of :mod:`.vocab_loss_terms`."""
        size, full, some = self.out.itemsize, len(self.target_head), len(self.head)
        casts = [d.itemsize if d != self.out else 0 for d in (self.dtype, self.target_head.dtype)]
        held = 2 * full if self.x.target_ids is None else 2 * full + 3 * some
        held += 0 if self.offset is None else some
        states = self.x.teacher.shape[-1] + 2 * self.x.draft.shape[-1]
        return LossCosts(
            teacher=size * (held + _ROW_TEMPORARIES * some + states) + casts[1] * full,
            row=(size + casts[0]) * some + 2 * size * states,
        )

    def _chunk(self, chunk: LossChunk, rows: Tensor, teachers: Tensor, compiled: bool, block: int) -> None:
        x = self.x
        z = x.transform(scores(x.teacher[teachers], self.target_head, self.out))  # (C, V)
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
                s[here],
                p[:count],
                None if full is None else full[:count],
                self.offset,
                x.draft_transform,
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
