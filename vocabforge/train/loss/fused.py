"""Vocabulary loss on one block of rows, and the fused loss over chunks of rows.

Draft rows that share a teacher are processed together, so each teacher is computed once. Within a chunk,
teachers are sorted by decreasing number of rows, and rows by their rank within their teacher. The rank-j rows
of a chunk then belong to its first n_j teachers. Both are plain slices, and nothing of size (rows, V) is
gathered.
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

from ...models.target.logits import IDENTITY, LogitFacts, LogitTransform, accumulation, product
from .kinds import (
    KL,
    Mixture,
    TeacherLogs,
    gradient_of,
    row_sums,
    slope_of,
    soft_cross_entropy,
    teacher_logs,
    value_of,
)


def teacher_terms(
    z: Tensor,
    target_ids: Tensor | None,
    best: Tensor | None = None,
    log_sum: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the terms of the teachers that draft rows need.

    Args:
        z: (C, V) target logits; with ``best`` and ``log_sum`` (C, R), the logits of the draft tokens only.
        target_ids: (R,) ascending ids of the draft vocabulary; None: all tokens.
        best, log_sum: (C,) argmax and log-sum-exp of the logits over all V tokens; None: computed from z.

    Returns:
        p (C, R) renormalised over the draft vocabulary; the mass (C,) of its tokens among all V; the column
        (C,) of the argmax over all V tokens, -1 if it is outside the draft vocabulary.
    """
    some = z if target_ids is None or best is not None else z[:, target_ids]
    best = z.argmax(-1) if best is None else best  # the first of equal maxima
    p = some.softmax(-1)
    column = columns_of(best, target_ids)
    if target_ids is None:
        mass = torch.ones_like(p[:, 0])
    else:
        mass = (_log_sum(some, p) - (z.logsumexp(-1) if log_sum is None else log_sum)).exp()
    return p, mass, column


def columns_of(tokens: Tensor, target_ids: Tensor | None) -> Tensor:
    """Return the columns of tokens (N,) in ascending ``target_ids`` (R,), -1 if absent; None: all tokens."""
    if target_ids is None:
        return tokens
    place = torch.searchsorted(target_ids, tokens).clamp(max=len(target_ids) - 1)
    return torch.where(target_ids[place] == tokens, place, -1)


def _log_sum(logits: Tensor, softmax: Tensor) -> Tensor:
    """Compute log-sum-exp from a known softmax, whose largest value is exp(max - log_sum)."""
    return logits.amax(-1) - softmax.amax(-1).log()


def row_terms(
    s: Tensor, p: Tensor, mass: Tensor, transform: LogitTransform = IDENTITY
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compare draft rows with their teachers.

    Args:
        s: (N, R) products with the draft head.
        p, mass: (N, R) and (N,) from :func:`teacher_terms`.
        transform: maps ``s`` to draft logits.

    Returns:
        Cross-entropy CE (N,) of p and q; sum_v min(mass p, q) (N,); argmax column (N,); the gradient (N, R)
        of CE with respect to ``s``: q - p through the transform.
    """
    best = s.argmax(-1)
    logits = transform(s)
    q = logits.softmax(-1)
    losses = -(p * (logits - _log_sum(logits, q)[:, None])).sum(-1)
    overlap = torch.minimum(p * mass[:, None], q).sum(-1)
    return losses, overlap, best, transform.gradient(q - p, logits)


def mixed_teacher_terms(
    z: Tensor, target_ids: Tensor | None, best: Tensor | None = None, log_sum: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the terms of the teachers for any mixture of losses; arguments as in :func:`teacher_terms`.

    Returns:
        Fields of :class:`TeacherLogs` and the column of the argmax.
    """
    best = z.argmax(-1) if best is None else best
    return *teacher_logs(z, target_ids, log_sum), columns_of(best, target_ids)


def mixed_row_terms(
    s: Tensor,
    teacher: TeacherLogs,
    column: Tensor,
    label: Tensor,
    mixture: Mixture,
    transform: LogitTransform = IDENTITY,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compare draft rows (N, R) with their teachers under a mixture of losses.

    Args:
        s: (N, R) products with the draft head.
        teacher: teacher of each row.
        column, label: (N,) columns of the teacher's argmax and of the data's next token, -1 for none.
        mixture: kinds of loss and their weights.
        transform: maps ``s`` to draft logits.

    Returns:
        Soft CE (N,), 0 if ``column`` is -1; alpha (N,); argmax column (N,); the loss (N,); its gradient (N,
        R) with respect to ``s``.
    """
    logits = transform(s)
    log_q = logits.log_softmax(-1)
    sums = row_sums(log_q, teacher, column, label)
    gradient = gradient_of(slope_of(mixture, sums), log_q, teacher.log_p, label)
    return (
        soft_cross_entropy(sums),
        sums.alpha,
        s.argmax(-1),
        value_of(mixture, sums),
        transform.gradient(gradient, logits),
    )


@functools.cache
def block_function(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    """Return one of the functions above, compiled or unchanged."""
    return torch.compile(function, dynamic=True) if compiled else function


Int = NDArray[np.int64]


@dataclass(frozen=True)
class LossChunk:
    """Slice of the plan's rows and teachers; ``ranks[j]`` rows have rank j within their teacher."""

    rows: slice
    teachers: slice
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class LossPlan:
    """Order of work: ``rows`` (M,) lists each draft row once, ``teachers`` (G,) the teacher of each group."""

    rows: Int
    teachers: Int
    chunks: tuple[LossChunk, ...]


def make_plan(teacher_row: Int, teacher_cost: int, row_cost: int, budget: int) -> LossPlan:
    """Plan chunks of at most ``budget`` bytes but at least one row; ``teacher_row`` is (M,).

    The costs are bytes of workspace per teacher and per draft row of a chunk.
    """
    if len(teacher_row) == 0:
        return LossPlan(np.zeros(0, np.int64), np.zeros(0, np.int64), ())
    by_teacher = np.argsort(teacher_row, kind="stable")
    ordered = teacher_row[by_teacher]
    rank = _rank_in_runs(ordered)
    most = max(1, (budget - teacher_cost) // row_cost)  # further rows of a teacher form another group
    first = rank % most == 0
    group, rank = np.cumsum(first) - 1, rank % most
    counts = np.bincount(group)
    place = np.empty_like(counts)
    falling = np.argsort(-counts, kind="stable")
    place[falling] = np.arange(len(counts))
    group, counts, teachers = place[group], counts[falling], ordered[first][falling]

    bounds = _bounds(teacher_cost + counts * row_cost, budget)
    chunk_of_group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = np.lexsort((group, rank, chunk_of_group[group]))
    ends = np.concatenate([[0], np.cumsum(counts)])
    chunks = tuple(
        LossChunk(slice(int(ends[a]), int(ends[b])), slice(int(a), int(b)), _ranks(counts[a:b]))
        for a, b in itertools.pairwise(bounds)
    )
    return LossPlan(by_teacher[order], teachers, chunks)


def _rank_in_runs(ordered: Int) -> Int:
    """Number the elements of every run of equal values 0, 1, 2, ..."""
    index = np.arange(len(ordered))
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    return index - np.maximum.accumulate(np.where(starts, index, 0))


def _bounds(sizes: Int, budget: int) -> list[int]:
    """Split groups greedily into runs of at most ``budget`` bytes; return the bounds 0, ..., len(sizes)."""
    total = np.cumsum(sizes)
    bounds = [0]
    while bounds[-1] < len(sizes):
        at = bounds[-1]
        before = int(total[at - 1]) if at else 0
        bounds.append(max(at + 1, int(np.searchsorted(total, before + budget, side="right"))))
    return bounds


def _ranks(counts: Int) -> tuple[int, ...]:
    """Count the groups that have a row of rank 0, 1, ..."""
    return tuple(int((counts > j).sum()) for j in range(int(counts.max())))


# Element-wise temporaries that exist at once, in addition to the logits of one block of rows.
_ROW_TEMPORARIES, _MIXED_TEMPORARIES = 4, 8
# Block size of element-wise work on a CPU. Blocks fit in the cache; allocating larger ones costs more than
# the work.
_BLOCK_BYTES = 1 << 20
# Enough rows for a product at full speed. Maximum chunk on a CPU, so that all chunks reuse the same memory.
_CHUNK_ROWS = 256
# One block of the draft head's gradient gets this fraction (1 / n) of the workspace.
_HEAD_SHARE = 16


@dataclass(frozen=True)
class LossInputs:
    """Arguments of :func:`vocabforge.train.loss.vocab.vocab_loss`.

    Attributes:
        draft: (M, H') draft states, input of the draft head.
        draft_head: (R, H') rows that score draft tokens.
        teacher: (P, H) target hidden states, input of the LM head; frozen.
        teacher_row: int64 (M,) row of ``teacher`` of each draft row.
        target_head: (V, H) LM head of the target; frozen.
        target_ids: int64 (R,) ascending ids of ``draft_head``'s rows; None: all V.
        weight: fp32 (M,), constant.
        facts: (P,) facts of the teachers' logits over all V; then only the logits of the R draft tokens are
            computed. None: all logits are computed.
        transform, draft_transform: map the products with ``target_head`` and with ``draft_head`` to logits.
        loss: kinds of :data:`.kinds.LOSSES` and their weights.
        label: int64 (M,) the data's next token, for kinds that use it.
        bias_head: (R, r) additional columns of the draft head for the last r entries of the states (DSpark's
            W2). Only trained parts of the two heads get a gradient.
    """

    draft: Tensor
    draft_head: Tensor
    teacher: Tensor
    teacher_row: Tensor
    target_head: Tensor
    target_ids: Tensor | None
    weight: Tensor
    facts: LogitFacts | None = None
    transform: LogitTransform = IDENTITY
    draft_transform: LogitTransform = IDENTITY
    loss: Mixture = KL
    label: Tensor | None = None
    bias_head: Tensor | None = None

    @property
    def whole_head(self) -> Tensor:
        """All columns (R, H') of the draft head."""
        if self.bias_head is None:
            return self.draft_head
        return torch.cat([self.draft_head, self.bias_head], 1)

    @property
    def label_column(self) -> Tensor:
        """Columns (M,) of the labels, -1 if a label is not a draft token or there are no labels."""
        if self.label is None:
            return self.teacher_row.new_full(self.teacher_row.shape, -1)
        return columns_of(self.label, self.target_ids)

    @property
    def teacher_head(self) -> Tensor:
        """Rows of ``target_head`` that teachers are multiplied with: (R, H) with facts, otherwise (V, H)."""
        if self.facts is None or self.target_ids is None:
            return self.target_head
        return self.target_head.index_select(0, self.target_ids)

    def product_dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """Return the dtypes of the products with draft head and LM head: autocast's, otherwise the head's."""
        kind = self.draft.device.type
        own = self.draft_head.dtype
        if self.bias_head is not None:
            own = torch.promote_types(own, self.bias_head.dtype)
        heads = own, self.target_head.dtype
        if not torch.is_autocast_enabled(kind):
            return heads
        cast = torch.get_autocast_dtype(kind)
        return tuple(d if d == torch.float64 else cast for d in heads)  # type: ignore[return-value]


class FusedVocabLoss(torch.autograd.Function):
    """Returns (total, losses, outside, correct, overlap, ceiling); computes gradients in the forward pass.

    The backward pass only scales the gradients (M, H') and the trained columns of (R, H').
    """

    @staticmethod
    def forward(
        ctx: Any,
        draft: Tensor,
        draft_head: Tensor,
        bias_head: Tensor | None,
        inputs: LossInputs,
        budget: int,
        compiled: bool,
        want: bool,
    ) -> tuple[Tensor, ...]:
        size = draft_head.shape[1]
        trained = [want and head is not None and head.requires_grad for head in (draft_head, bias_head)]
        columns = slice(0 if trained[0] else size, None if trained[1] else size)
        dtypes = inputs.product_dtypes()
        with torch.autocast(draft.device.type, enabled=False):
            work = _Work(inputs, dtypes, want and draft.requires_grad, columns if any(trained) else None)
            work.run(budget, compiled)
        parts = (draft_head, slice(size)), (bias_head, slice(size - columns.start, None))
        grad_head, grad_bias = (
            work.head_sum[:, part].to(head.dtype) if here else None  # type: ignore[index, union-attr]
            for here, (head, part) in zip(trained, parts)
        )
        ctx.save_for_backward(work.grad_draft, grad_head, grad_bias)
        ctx.set_materialize_grads(False)
        total = (work.values * inputs.weight).sum()
        rest = (work.losses.float(), work.outside, work.correct, work.overlap.float(), work.ceiling.float())
        ctx.mark_non_differentiable(*rest)
        return (total, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_rest: Any) -> tuple[Tensor | None, ...]:
        scaled = [None if g is None or grad is None else g * grad.to(g.dtype) for g in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


class _Work:
    def __init__(
        self,
        inputs: LossInputs,
        dtypes: tuple[torch.dtype, torch.dtype],
        draft_grad: bool,
        columns: slice | None,
    ) -> None:
        self.x = inputs
        self.dtype = dtypes[0]
        self.out = accumulation(torch.promote_types(*dtypes))
        self.head = inputs.whole_head.detach().to(dtypes[0])  # cast once instead of in every chunk
        self.teacher_head = inputs.teacher_head.to(dtypes[1])
        self.held: dict[str, Tensor] = {}
        rows, device = len(inputs.draft), inputs.draft.device
        self.mixed = inputs.loss != KL
        self.label = inputs.label_column
        self.temporaries = _MIXED_TEMPORARIES if self.mixed else _ROW_TEMPORARIES
        self.values = torch.zeros(rows, dtype=self.out, device=device)
        self.losses = torch.zeros(rows, dtype=self.out, device=device)
        self.overlap = torch.zeros(rows, dtype=self.out, device=device)
        self.ceiling = torch.zeros(rows, dtype=self.out, device=device)
        self.outside = torch.zeros(rows, dtype=torch.bool, device=device)
        self.correct = torch.zeros(rows, dtype=torch.bool, device=device)
        self.grad_draft = torch.zeros_like(inputs.draft) if draft_grad else None
        # Gradient of the trained columns, summed over chunks in fp32 for any head dtype.
        self.columns, self.head_sum = columns, None
        if columns is not None:
            self.head_sum = torch.zeros_like(self.head[:, columns], dtype=self.out)

    def run(self, budget: int, compiled: bool) -> None:
        (teacher, row), device = self._costs(), self.x.draft.device
        block = max(1, budget // (_HEAD_SHARE * self.out.itemsize * self.head.shape[1]))
        if device.type == "cpu":
            cached = max(_BLOCK_BYTES, self.out.itemsize * len(self.teacher_head))
            budget = min(budget - self.temporaries * cached, _CHUNK_ROWS * (teacher + row))
        plan = make_plan(self.x.teacher_row.cpu().numpy(), teacher, row, budget)
        order, teachers = (torch.from_numpy(ids).to(device) for ids in (plan.rows, plan.teachers))
        for chunk in plan.chunks:
            self._chunk(chunk, order[chunk.rows], teachers[chunk.teachers], compiled, block)

    def _costs(self) -> tuple[int, int]:
        """Return the workspace per teacher and per draft row in bytes: logits, distributions, temporaries."""
        size, full, some = self.out.itemsize, len(self.teacher_head), len(self.head)
        casts = [d.itemsize if d != self.out else 0 for d in (self.dtype, self.teacher_head.dtype)]
        held = full if full == some else full + some
        if self.x.draft.device.type != "cpu":
            held += full + self.temporaries * some
        states = self.x.teacher.shape[-1] + 2 * self.x.draft.shape[-1]
        return size * (held + states) + casts[1] * full, (size + casts[0]) * some + 2 * size * states

    def _blocks(self, rows: int, columns: int) -> list[slice]:
        """Split rows into blocks for element-wise work on a CPU; other devices take all rows at once."""
        if self.x.draft.device.type != "cpu":
            return [slice(0, rows)]
        some = max(1, _BLOCK_BYTES // (self.out.itemsize * columns))
        return [slice(first, min(first + some, rows)) for first in range(0, rows, some)]

    def _teach(self, teachers: Tensor, compiled: bool) -> list[Tensor]:
        """Compute :func:`teacher_terms` or :func:`mixed_teacher_terms` of a chunk's teachers."""
        x, terms = self.x, block_function(mixed_teacher_terms if self.mixed else teacher_terms, compiled)
        facts = None if x.facts is None else x.facts.map(lambda each: each[teachers])
        # (C, V), or (C, R) with facts
        z = x.transform(
            self._product("z", x.teacher[teachers].to(self.teacher_head.dtype), self.teacher_head)
        )
        p = z if z.shape[1] == len(self.head) else self._memory("p", len(z), len(self.head))
        rest = []
        for at in self._blocks(*z.shape):
            known = () if facts is None else (facts.best[at], facts.log_sum[at])
            p[at], *others = terms(z[at], x.target_ids, *known)
            rest.append(others)
        return [p, *(torch.cat(each) for each in zip(*rest))]

    def _product(self, name: str, states: Tensor, head: Tensor) -> Tensor:
        """Multiply (N, H) x (R, H) -> (N, R) in the accumulation dtype."""
        if states.dtype != self.out:
            return product(states, head.t(), self.out)
        return torch.mm(states, head.t(), out=self._memory(name, len(states), len(head)))

    def _memory(self, name: str, rows: int, columns: int) -> Tensor:
        """Return a (rows, columns) buffer from memory of earlier chunks: on a CPU new pages are expensive."""
        if name not in self.held or self.held[name].numel() < rows * columns:
            self.held.pop(name, None)
            self.held[name] = torch.empty(rows * columns, dtype=self.out, device=self.head.device)
        return self.held[name][: rows * columns].view(rows, columns)

    def _chunk(self, chunk: LossChunk, rows: Tensor, teachers: Tensor, compiled: bool, block: int) -> None:
        x, terms = self.x, block_function(mixed_row_terms if self.mixed else row_terms, compiled)
        p, mass, *entropy, column = self._teach(teachers, compiled)
        label = self.label[rows]
        draft = x.draft.detach()[rows]
        s = self._product("s", draft.to(self.dtype), self.head)  # (m, R); becomes its own gradient
        parts, at = [], 0
        for count in chunk.ranks:
            for own in self._blocks(count, len(self.head)):
                here = slice(at + own.start, at + own.stop)
                taught = p[own], mass[own]
                rest: tuple[Any, ...] = taught
                if self.mixed:
                    rest = TeacherLogs(*taught, entropy[0][own]), column[own], label[here], x.loss
                *figures, s[here] = terms(s[here], *rest, x.draft_transform)
                parts.append(figures)
            at += count
        losses, overlap, best, *values = (torch.cat(each) for each in zip(*parts))
        teacher = torch.cat([torch.arange(count, device=rows.device) for count in chunk.ranks])  # (m,)
        known = column[teacher] >= 0
        self.losses[rows] = torch.where(known, losses, 0.0)
        self.overlap[rows], self.ceiling[rows] = overlap, mass[teacher]
        self.outside[rows], self.correct[rows] = ~known, best == column[teacher]
        self.values[rows] = values[0] if self.mixed else self.losses[rows]
        weight = x.weight[rows] if self.mixed else torch.where(known, x.weight[rows], 0.0)
        self._gradients(s, rows, draft, weight[:, None], block)

    def _gradients(self, delta: Tensor, rows: Tensor, draft: Tensor, weight: Tensor, block: int) -> None:
        """Multiply d loss / d s (m, R) with the head and with the draft states (per ``block`` head rows).

        The weight (m, 1) is applied to the factors with H' columns, not to those with R.
        """
        if self.grad_draft is None and self.head_sum is None:
            return
        delta = delta.to(self.dtype)
        if self.grad_draft is not None:
            gradient = product(delta, self.head, self.out) * weight
            self.grad_draft[rows] = gradient.to(self.grad_draft.dtype)
        if self.head_sum is None:
            return
        draft = (draft[:, self.columns].to(self.out) * weight).to(self.dtype)
        if self.dtype == self.out:
            self.head_sum.addmm_(delta.t(), draft)
            return
        for some in torch.arange(len(self.head)).split(block):
            part = slice(int(some[0]), int(some[-1]) + 1)
            self.head_sum[part] += product(delta[:, part].t(), draft, self.out)
