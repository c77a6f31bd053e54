"""Chains of an EAGLE-3 layer on a CPU: what was accepted is committed, and the next tokens are drafted, in one call."""

from __future__ import annotations

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
) -> Tensor:
    """As :func:`draft_chain`, in PyTorch."""
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
        best = F.linear(read, head).argmax(-1)
        ids = best if head_ids is None else head_ids[best]
        tokens.append(ids)
        if len(tokens) > count:
            return torch.cat(tokens)


_OP = Op("draft_chain", draft_chain_reference, frozenset({torch.float32}), host=True)


def runs_chains(x: Tensor) -> bool:
    """Whether the compiled op takes such numbers, on a machine where it is built."""
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
) -> Tensor:
    """Run N committed tokens through EAGLE-3's layer, then draft ``count`` tokens, each the best after the one before.

    Source: EAGLE-3 (Li et al., 2025), section 3.2; the layer is :func:`.decoder_layers.decoder_layers`'s.

    Args:
        features: (N, K) fp32, as all numbers here, of committed positions.
        fc: (H, K) fuses them; None: they are fused, K = H.
        ids: (N,) int64 tokens after them.
        start: slot and rotary position of the first; the others, and the drafts, follow it.
        count: drafts, at least 1.
        embedding: (V, H).
        joined, normed_residual, weights, heads, eps, scale: as ``decoder_layers`` has them.
        normed_output: the next g is the normed output, not the output.
        norm: (H,) before the head.
        cos, sin: (P, D) of positions, P at least start + N + count - 1; sines are signed.
        keys: (1, 1, Hkv, S, D); written in place.
        values: likewise.
        head: (R, H).
        head_ids: (R,) int64 ids of its rows; None: row j scores token j.

    Returns:
        (1 + count,) int64: the last of ``ids``, and the drafts.
    """
    model = joined, normed_residual, normed_output, weights, norm, cos, sin, keys, values
    result: Tensor = _OP(
        backend,
        features.contiguous(),
        fc,
        ids,
        start,
        count,
        embedding,
        *model,
        head,
        head_ids,
        heads,
        eps,
        scale,
    )
    return result
