# mypy: allow-untyped-defs, allow-incomplete-defs
"""Triton baselines for the ops, autotuned on the machine. Needs Triton, which CUDA builds of torch include.

Each is a simple but efficient version: one pass over the head's rows, no deduplication of rows.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def _tuned(keys: list[str], **sizes: tuple[int, ...]) -> Any:
    """Autotune over blocks of 4,096 to 16,384 weights per value of the keys; the interpreter uses one block.

    Each size has one warp count, and timings are short: tuning already compiles eight kernels and takes
    seconds.
    """
    found = [
        triton.Config(
            dict(zip(sizes, some)),
            **({"num_warps": 8, "num_stages": 3} if weights > 8192 else {"num_stages": 4}),
        )
        for some in itertools.product(*sizes.values())
        if 4096 <= (weights := some[0] * some[1]) <= 16384
    ]
    return triton.autotune(
        found[:1] if triton.knobs.runtime.interpret else found,
        key=keys,
        do_bench=lambda call, quantiles: triton.testing.do_bench(call, warmup=5, rep=20, quantiles=quantiles),
    )


@_tuned(["n", "k", "d"], BLOCK_K=(4, 8, 16, 32), BLOCK_D=(256, 512, 1024))
@triton.jit
def _indexed(hidden, weight, ids, logits, n, k, d, vocab, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr):
    state = tl.program_id(1)
    place = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    listed = tl.load(ids + state * k + place, mask=place < k, other=-1)
    there = (listed >= 0) & (listed < vocab)
    rows = weight + listed.to(tl.int64)[:, None] * d
    sums = tl.zeros((BLOCK_K, BLOCK_D), tl.float32)
    for begin in range(0, d, BLOCK_D):
        column = begin + tl.arange(0, BLOCK_D)
        h = tl.load(hidden + state * d + column, mask=column < d, other=0.0).to(tl.float32)
        w = tl.load(rows + column[None, :], mask=there[:, None] & (column < d)[None, :], other=0.0)
        sums += w.to(tl.float32) * h[None, :]
    found = tl.where(there, tl.sum(sums, 1), float("-inf"))
    tl.store(logits + state * k + place, found, mask=place < k)


def indexed_logits(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Compute (N, k) fp32 logits of ids (N, k) like ``ops.indexed_logits``, with one dot product per id.

    Rows listed twice are read again, from the cache.
    """
    (n, k), (vocab, d) = ids.shape, weight.shape
    logits = torch.empty((n, k), device=hidden.device)

    def grid(sizes: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(k, sizes["BLOCK_K"]), n

    _indexed[grid](hidden, weight, ids, logits, n, k, d, vocab)
    return logits


@_tuned(["n", "columns", "d"], BLOCK_C=(16, 32, 64, 128), BLOCK_D=(64, 128, 256))
@triton.jit
def _union(
    hidden, weight, rows, count, logits, n, columns, d, vocab,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    state = tl.arange(0, BLOCK_N)
    listed = tl.load(rows + place, mask=(place < columns) & (place < tl.load(count)), other=-1)
    there = (listed >= 0) & (listed < vocab)
    sums = tl.zeros((BLOCK_C, BLOCK_N), tl.float32)
    for begin in range(0, d, BLOCK_D):
        column = begin + tl.arange(0, BLOCK_D)
        w = tl.load(
            weight + listed.to(tl.int64)[:, None] * d + column[None, :],
            mask=there[:, None] & (column < d)[None, :],
            other=0.0,
        )
        h = tl.load(
            hidden + state[None, :] * d + column[:, None],
            mask=(state < n)[None, :] & (column < d)[:, None],
            other=0.0,
        )
        sums = tl.dot(w, h, sums)
    found = tl.where(there[:, None], sums, float("-inf"))
    inside = (state < n)[None, :] & (place < columns)[:, None]
    tl.store(logits + state[None, :] * columns + place[:, None], found, mask=inside)


def union_logits(hidden: Tensor, weight: Tensor, rows: Tensor, count: Tensor) -> Tensor:
    """Compute (N, C) fp32 logits of the first ``count`` (1,) int32 of rows (C,) like ``ops.union_logits``.

    Uses tensor cores.
    """
    (n, d), columns = hidden.shape, len(rows)
    logits = torch.empty((n, columns), device=hidden.device)

    def grid(sizes: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(columns, sizes["BLOCK_C"]),)

    block = max(16, triton.next_power_of_2(n))
    _union[grid](hidden, weight, rows, count, logits, n, columns, d, len(weight), BLOCK_N=block)
    return logits


_CHUNK = 2048  # logits ranked per block


@triton.jit
def _best_of_chunk(logits, values, ids, masses, columns, K: tl.constexpr, CHUNK: tl.constexpr):
    chunk, row = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, CHUNK)
    place = chunk * CHUNK + lane
    left = tl.load(logits + row * columns + place, mask=place < columns, other=float("-inf")).to(tl.float32)
    out = row * tl.num_programs(0) + chunk
    highest = tl.max(left, 0)
    tl.store(masses + 2 * out, highest)
    tl.store(masses + 2 * out + 1, tl.sum(tl.exp(left - highest), 0))
    for j in tl.static_range(K):
        best, at = tl.max(left, 0, return_indices=True)
        tl.store(values + out * K + j, best)
        tl.store(ids + out * K + j, chunk * CHUNK + at)
        left = tl.where(lane == at, float("-inf"), left)


@triton.jit
def _best_of_row(
    values, ids, masses, target_ids, best_values, best_ids, chunks,
    K: tl.constexpr, CHUNKS: tl.constexpr, WIDE: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    chunk, lane = tl.arange(0, CHUNKS), tl.arange(0, WIDE)
    at = 2 * (row * chunks + chunk)
    highest = tl.load(masses + at, mask=chunk < chunks, other=float("-inf"))
    mass = tl.load(masses + at + 1, mask=chunk < chunks, other=0.0)
    top = tl.max(highest, 0)
    norm = top + tl.log(tl.sum(mass * tl.exp(highest - top), 0))
    left = tl.load(values + row * chunks * K + lane, mask=lane < chunks * K, other=float("-inf"))
    for j in tl.static_range(K):
        best, place = tl.max(left, 0, return_indices=True)
        chosen = tl.load(ids + row * chunks * K + place)
        if MAPPED:
            chosen = tl.load(target_ids + chosen)
        tl.store(best_values + row * K + j, best - norm)
        tl.store(best_ids + row * K + j, chosen)
        left = tl.where(lane == place, float("-inf"), left)


def draft_topk(logits: Tensor, k: int, target_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (N, k) fp32 and ids (N, k) int64 of the top k of (N, C) finite logits, sorted.

    Uses two kernels: the best of each chunk with its mass, then the best over all chunks.
    """
    n, columns = logits.shape
    chunks = triton.cdiv(columns, _CHUNK)
    values, masses = (torch.empty((n, chunks, size), device=logits.device) for size in (k, 2))
    ids = torch.empty((n, chunks, k), dtype=torch.int32, device=logits.device)
    best = torch.empty((n, k), device=logits.device)
    chosen = torch.empty((n, k), dtype=torch.int64, device=logits.device)
    _best_of_chunk[(chunks, n)](logits, values, ids, masses, columns, K=k, CHUNK=_CHUNK)
    wide, mapped = triton.next_power_of_2(chunks * k), target_ids is not None
    _best_of_row[(n,)](
        values, ids, masses, target_ids if mapped else ids, best, chosen, chunks,
        K=k, CHUNKS=triton.next_power_of_2(chunks), WIDE=wide, MAPPED=mapped,
    )  # fmt: skip
    return best, chosen
