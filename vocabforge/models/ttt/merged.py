"""TTT attention on a CPU: each document's causal part and a row's own keys, merged by log-sum-exp.

Let s_tj be the scaled score of query t and step-0 key j, and d_ti the score of its own key of step i::

    L_c = log sum_j exp s_tj        O_c = sum_j exp(s_tj - L_c) v_j          (causal part, torch's flash kernel)
    L   = log(exp L_c + sum_i exp d_ti)
    O   = exp(L_c - L) O_c + sum_i exp(d_ti - L) v_ti

The weights of all keys are exp(score - L). A flash kernel's backward pass recomputes them from the L it
receives and subtracts delta = dO . O from every dO . v. Given the merged L and O, it therefore computes the
causal part of the merged gradient, and O_c and L_c need not be saved. The same rule applies to the own keys::

    w_i = exp(d_i - L),  dv_i = w_i dO,  dd_i = w_i (dO . v_i - delta),  dq += dd_i k_i,  dk_i = dd_i q
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core.errors import DataError
from ..target.documents import runs_of


@dataclass(frozen=True)
class Segment:
    """A token range shared by adjacent rows; a ``padding`` token attends only to itself."""

    rows: slice
    tokens: slice
    padding: bool


@dataclass(frozen=True)
class Documents:
    """Documents of packed rows.

    Attributes:
        first: int64 (B, T) first token that each token attends to; the visible tokens are ``first[t] .. t``.
        segments: the same information as slices; they cover every token once.
        cache: data that an implementation keeps for later steps of the unroll.
    """

    first: Tensor
    segments: tuple[Segment, ...]
    cache: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, document: Tensor) -> Documents:
        """Find the documents from document numbers (B, T), 0 for padding.

        Raises:
            DataError: a document is not contiguous in its row.
        """
        numbers = document.cpu().numpy()
        rows = [list(runs_of(row)) for row in numbers]
        for index, runs in enumerate(rows):
            seen = [number for _, _, number in runs if number != 0]
            if len(seen) != len(set(seen)):
                twice = next(number for number in seen if seen.count(number) > 1)
                raise DataError(
                    "a packed row holds a document in two places",
                    got=f"document {twice} of row {index}",
                    expected="contiguous documents",
                    remedy="use memory.attention: eager, or pack each document contiguously",
                )
        segments, first = [], np.empty(numbers.shape, np.int64)
        same = 0
        for index, runs in enumerate(rows):
            for a, b, number in runs:
                first[index, a:b] = a if number else np.arange(a, b)
            # Adjacent rows with the same boundaries share segments.
            shape = [(a, b, number != 0) for a, b, number in runs]
            last = index + 1 == len(rows)
            if last or shape != [(a, b, number != 0) for a, b, number in rows[index + 1]]:
                segments += [Segment(slice(same, index + 1), slice(a, b), not real) for a, b, real in shape]
                same = index + 1
        return cls(torch.from_numpy(first).to(document.device), tuple(segments))


def causal_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attend causally: q (B, h, S, D), k, v (B, kv, S, D) -> out (B, h, S, D), lse (B, h, S).

    The lse is fp32 (fp64 for fp64).
    """
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    return out, lse


def causal_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dq, dk, dv for weights exp(score - lse) and the output ``out``."""
    run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    dq, dk, dv = run(grad.contiguous(), q, k, v, out, lse, 0.0, True)
    return dq, dk, dv


def merged_attention(q: Tensor, k: Sequence[Tensor], v: Sequence[Tensor], documents: Documents) -> Tensor:
    """Compute TTT attention (B, h, T, D) without (T, T) weights.

    The result has q's dtype; scores, weights and sums are fp32 (fp64 for fp64).

    Args:
        q: (B, h, T, D).
        k, v: (B, kv, T, D) of each step, the causal keys first.
    """
    return _Merged.apply(q, documents, *k, *v)


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, documents: Documents, *kv: Tensor) -> Tensor:
        k, v = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        with torch.autocast(q.device.type, enabled=False):
            out, lse = _causal(q, k[0], v[0], documents)
            out, lse = merge(q, out, lse, k[1:], v[1:])
        ctx.documents = documents
        ctx.save_for_backward(q, out, lse, *kv)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, out, lse, *kv = ctx.saved_tensors
        k, v = kv[: len(kv) // 2], kv[len(kv) // 2 :]
        with torch.autocast(q.device.type, enabled=False):
            dq, dk, dv = _causal_backward(grad, q, k[0], v[0], out, lse, ctx.documents)
            own = own_keys_backward(grad, q, lse, _delta(grad, out), k[1:], v[1:])
            if k[1:]:
                dq = dq + own[0]
        return (dq, None, dk, *own[1], dv, *own[2])


def merge(
    q: Tensor, out: Tensor, lse: Tensor, k: Sequence[Tensor], v: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Merge a row's own keys into attention over other keys: out in q's dtype, and lse over all keys.

    Args:
        q: (B, h, T, D).
        out, lse: (B, h, T, D) and (B, h, T) over the other keys.
        k, v: (B, kv, T, D) each.
    """
    if not k:
        return out, lse
    dots = [own_scores(q, key) for key in k]  # (B, h, T) each
    total = torch.stack([lse, *dots]).logsumexp(0)
    merged = (lse - total).exp()[..., None] * out  # fp32 for any dtype of out
    for dot, value in zip(dots, v):
        weight = _grouped((dot - total).exp()[..., None], value)  # (B, kv, g, T, 1)
        _grouped(merged, value).add_(weight * value[:, :, None])
    return merged.to(q.dtype), total


def own_scores(q: Tensor, k: Tensor) -> Tensor:
    """Compute q_t . k_t / sqrt(D) for each row: (B, h, T, D), (B, kv, T, D) -> (B, h, T)."""
    precise = torch.promote_types(q.dtype, torch.float32)
    dots = (_grouped(q, k).to(precise) * k[:, :, None].to(precise)).sum(-1)  # (B, kv, g, T)
    return dots.flatten(1, 2) * q.shape[-1] ** -0.5


def own_keys_backward(
    grad: Tensor, q: Tensor, lse: Tensor, delta: Tensor, k: Sequence[Tensor], v: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Compute the gradients through a row's own keys: dq (B, h, T, D), and dk, dv (B, kv, T, D) of each step.

    Args:
        grad: (B, h, T, D) gradient of the merged output.
        lse, delta: (B, h, T) of the merged output.
    """
    precise = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5
    dq = torch.zeros_like(q, dtype=precise)
    dk, dv = [], []
    wide = grad.to(precise)
    for key, value in zip(k, v):
        weight = (own_scores(q, key) - lse).exp()  # (B, h, T)
        by_value = (_grouped(wide, value) * value[:, :, None]).sum(-1).flatten(1, 2)
        slope = _grouped((weight * (by_value - delta) * scale)[..., None], key)  # (B, kv, g, T, 1)
        _grouped(dq, key).add_(slope * key[:, :, None])
        dk.append((slope * _grouped(q, key)).sum(2).to(key.dtype))
        dv.append((_grouped(weight[..., None], value) * _grouped(wide, value)).sum(2).to(value.dtype))
    return dq.to(q.dtype), dk, dv


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """View (B, h, T, .) as (B, kv, h / kv, T, .), with query heads grouped by key head."""
    return x.unflatten(1, (k.shape[1], x.shape[1] // k.shape[1]))


def _delta(grad: Tensor, out: Tensor) -> Tensor:
    precise = torch.promote_types(out.dtype, torch.float32)
    return (grad.to(precise) * out).sum(-1)


def _causal(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> tuple[Tensor, Tensor]:
    """Compute out (B, h, T, D) and lse (B, h, T) over the step-0 keys."""
    if len(documents.segments) == 1 and not documents.segments[0].padding:
        return causal_forward(q, k, v)
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for segment in documents.segments:
        rows, tokens = segment.rows, segment.tokens
        part = [x[rows, :, tokens] for x in (q, k, v)]
        if segment.padding:
            lse[rows, :, tokens] = own_scores(part[0], part[1])
            _grouped(out, k)[rows, :, :, tokens] = part[2][:, :, None]
        else:
            out[rows, :, tokens], lse[rows, :, tokens] = causal_forward(*part)
    return out, lse


def _causal_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, documents: Documents
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dq, dk, dv of the step-0 keys from the merged out and lse."""
    if len(documents.segments) == 1 and not documents.segments[0].padding:
        return causal_backward(grad, q, k, v, out, lse)
    results = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for segment in documents.segments:
        rows, tokens = segment.rows, segment.tokens
        part = [x[rows, :, tokens] for x in (grad, q, k, v, out, lse)]
        if segment.padding:
            delta = _delta(part[0], part[4])
            dq, dk, dv = own_keys_backward(part[0], part[1], part[5], delta, [part[2]], [part[3]])
            parts = dq, dk[0], dv[0]
        else:
            parts = causal_backward(*part)
        for result, value in zip(results, parts):
            result[rows, :, tokens] = value
    return results
