"""Causal attention of one document with its log-sum-exp: torch's flash kernel on CPUs, blocks elsewhere.

Both take and give the same: forward ``out`` and ``lse`` (log of the sum of exponentials of a query's scores); backward
uses the ``out`` and ``lse`` that it is given, which may include further keys (see :mod:`.ttt_merged`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

_QUERIES, _KEYS = 256, 1024  # a block of scores


def causal_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(B, h, S, D) queries over (B, kv, S, D) keys -> out (B, h, S, D), lse (B, h, S) in fp32 (fp64 for fp64)."""
    if q.device.type == "cpu" and has_cpu_kernel():
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        return out, lse
    return blocks_forward(q, k, v)


def causal_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv for weights exp(score - lse) and the output ``out``."""
    if q.device.type == "cpu" and has_cpu_kernel():
        run = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = run(grad.contiguous(), q, k, v, out, lse, 0.0, True)
        return dq, dk, dv
    return blocks_backward(grad, q, k, v, out, lse)


@functools.cache
def has_cpu_kernel() -> bool:
    """Whether this torch has the CPU flash kernel, and it does what is relied on here.

    It is not public: it must give the log-sum-exp, take grouped heads, and in its backward pass use the ``out``
    and ``lse`` that it is given. Small random rows against the blocks below decide.
    """
    try:
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            generator = torch.Generator().manual_seed(0)
            q, grad = (torch.randn(1, 4, 7, 8, generator=generator) for _ in range(2))
            k, v = (torch.randn(1, 2, 7, 8, generator=generator) for _ in range(2))
            out, lse = forward(q, k, v, 0.0, True)
            expected = blocks_forward(q, k, v)
            if not _close((out, lse), expected):
                return False
            out, lse = expected[0] * 0.5, expected[1] + 0.7  # as if there were further keys
            found = backward(grad, q, k, v, out, lse, 0.0, True)
            return _close(found, blocks_backward(grad, q, k, v, out, lse))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False


def _close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    return all(a.shape == b.shape and torch.allclose(a, b, atol=1e-4) for a, b in zip(found, expected))


def blocks_forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`causal_forward` with block after block of scores (Milakov and Gimelshein 2018; Dao 2022)."""
    precise = torch.promote_types(q.dtype, torch.float32)
    grouped = q.unflatten(1, (k.shape[1], -1))  # (B, kv, g, S, D)
    out, lse = torch.empty_like(grouped), torch.empty(grouped.shape[:-1], dtype=precise, device=q.device)
    for rows in _blocks(q.shape[2], _QUERIES):
        query = grouped[:, :, :, rows].to(precise)
        highest = torch.full(query.shape[:-1], -torch.inf, dtype=precise, device=q.device)
        total, summed = torch.zeros_like(highest), torch.zeros_like(query)
        for keys in _blocks(rows.stop, _KEYS):
            score = _scores(query, k, rows, keys)
            new = torch.maximum(highest, score.amax(-1))
            weight = (score - new[..., None]).exp_()
            shrink = (highest - new).exp()
            total = total * shrink + weight.sum(-1)
            summed = summed * shrink[..., None] + weight @ v[:, :, None, keys].to(precise)
            highest = new
        out[:, :, :, rows] = (summed / total[..., None]).to(q.dtype)
        lse[:, :, :, rows] = highest + total.log()
    return out.flatten(1, 2), lse.flatten(1, 2)


def blocks_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`causal_backward` with block after block of scores."""
    precise = torch.promote_types(q.dtype, torch.float32)
    heads = (k.shape[1], -1)
    scale = q.shape[-1] ** -0.5
    delta = (grad.to(precise) * out).sum(-1).unflatten(1, heads)  # (B, kv, g, S)
    grouped, wide, log_sum = (x.unflatten(1, heads) for x in (q, grad, lse))
    dq = torch.empty_like(grouped)
    dk, dv = torch.zeros_like(k, dtype=precise), torch.zeros_like(v, dtype=precise)
    for rows in _blocks(q.shape[2], _QUERIES):
        query, above = grouped[:, :, :, rows].to(precise), wide[:, :, :, rows].to(precise)
        part = torch.zeros_like(query)
        for keys in _blocks(rows.stop, _KEYS):
            weight = (_scores(query, k, rows, keys) - log_sum[:, :, :, rows, None]).exp_()
            dv[:, :, keys] += (weight.transpose(-1, -2) @ above).sum(2)
            slope = above @ v[:, :, None, keys].to(precise).transpose(-1, -2)
            slope = slope.sub_(delta[:, :, :, rows, None]).mul_(weight).mul_(scale)
            part += slope @ k[:, :, None, keys].to(precise)
            dk[:, :, keys] += (slope.transpose(-1, -2) @ query).sum(2)
        dq[:, :, :, rows] = part.to(q.dtype)
    return dq.flatten(1, 2), dk.to(k.dtype), dv.to(v.dtype)


def _blocks(stop: int, size: int) -> Iterator[slice]:
    for at in range(0, stop, size):
        yield slice(at, min(stop, at + size))


def _scores(query: Tensor, k: Tensor, rows: slice, keys: slice) -> Tensor:
    """Scaled scores (B, kv, g, queries, keys) of one block, -inf where a key lies after its query."""
    score = query @ k[:, :, None, keys].to(query.dtype).transpose(-1, -2)
    score *= query.shape[-1] ** -0.5
    if keys.stop > rows.start + 1:
        t = torch.arange(rows.start, rows.stop, device=query.device)[:, None]
        s = torch.arange(keys.start, keys.stop, device=query.device)[None]
        score.masked_fill_(s > t, -torch.inf)
    return score
