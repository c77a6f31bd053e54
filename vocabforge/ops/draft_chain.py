"""Chain drafting with an EAGLE-3 layer on a CPU: commit accepted tokens and draft new ones in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .backend import Op
from .decoder_layers import decoder_layers_reference


def draft_chain_reference(
    features: Tensor,
    fc: Tensor | None,
    ids: Tensor,
    start: int,
    count: int,
    embedding: Tensor,
    joined: Sequence[Tensor],
    normed_residual: bool,
    normed_output: bool,
    weights: Sequence[Tensor],
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    head: Tensor,
    head_ids: Tensor | None,
    heads: int,
    eps: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`draft_chain` in PyTorch."""
    in_head = 0.0
    g = features if fc is None else F.linear(features, fc)
    tokens = [ids[-1:]]
    while True:
        slots = torch.arange(start, start + len(ids), device=g.device)
        start += len(ids)
        table = (cos[slots][None], sin[slots][None])
        fed = F.embedding(ids, embedding)
        more = None, None, start, None, keys, values, slots, (0,), (0,), heads, 0, eps, scale, 1.0, False
        normed, out = decoder_layers_reference(
            g, fed, joined, normed_residual, weights, norm, (*table, *table), *more
        )
        g, read = (normed if normed_output else out)[-1:], normed[-1:]
        began = time.perf_counter()
        best = F.linear(read, head).argmax(-1)
        ids = best if head_ids is None else head_ids[best]
        tokens.append(ids)
        in_head += time.perf_counter() - began
        if len(tokens) > count:
            return torch.cat(tokens), torch.tensor([in_head])


_OP = Op("draft_chain", draft_chain_reference, frozenset({torch.float32}), host=True)


def runs_chains(x: Tensor) -> bool:
    """Return whether the compiled op is available for such tensors."""
    return _OP.compiled(x) is not None


def draft_chain(
    features: Tensor,
    fc: Tensor | None,
    ids: Tensor,
    *,
    start: int,
    count: int,
    embedding: Tensor,
    joined: Sequence[Tensor],
    normed_residual: bool,
    normed_output: bool,
    weights: Sequence[Tensor],
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    head: Tensor,
    head_ids: Tensor | None,
    heads: int,
    eps: float,
    scale: float,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Run N committed tokens through EAGLE-3's layer, then draft ``count`` tokens greedily.

    Source: EAGLE-3 (Li et al., 2025), section 3.2; the layer is :func:`.decoder_layers.decoder_layers`'s.

    Args:
        features: (N, K) features of the committed positions; fp32 like all floating-point tensors here.
        fc: (H, K) fusion of the features; None: they are already fused, K = H.
        ids: (N,) int64 tokens that follow these positions.
        start: slot and rotary position of the first token; the others and the drafts follow it.
        count: number of draft tokens, at least 1.
        embedding: (V, H).
        joined, normed_residual, weights, heads, eps, scale: see ``decoder_layers``.
        normed_output: feed the normalised output back as the next g instead of the output.
        norm: (H,) weight of the norm before the head.
        cos, sin: (P, D) cosines and signed sines by position; P is at least start + N + count - 1.
        keys: (1, 1, Hkv, S, D); written in place.
        values: same as ``keys``.
        head: (R, H).
        head_ids: (R,) int64 token ids of the head's rows; None: row j scores token j.

    Returns:
        (1 + count,) int64, the last of ``ids``, then the draft tokens; and (1,) fp32, the seconds spent in the
        head.
    """
    committed = features.contiguous(), fc, ids, start, count
    layer = embedding, joined, normed_residual, normed_output, weights, norm, cos, sin, keys, values
    result: tuple[Tensor, Tensor] = _OP(backend, *committed, *layer, head, head_ids, heads, eps, scale)
    return result
