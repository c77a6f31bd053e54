"""Output of a draft head: log-softmax over each row's columns and the top k as target ids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .arguments import INT64, INTEGERS, check_range, check_tensors
from .backend import FLOATS, Op
from .ordering import topk_by_id

MOST_K = 64
_NONE = float("-inf")


def draft_topk(
    logits: Tensor,
    k: int,
    *,
    ids: Tensor | None = None,
    target_ids: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Compute log-softmax over each row's columns and its top k; ties go to the lower final id.

    The final id of column c is ``target_ids[ids[c]]``; a missing mapping is the identity. Columns with id -1,
    with an id outside ``target_ids`` or with a NaN logit are ignored and get no probability.
    Log-probabilities are never above 0 (a child's score would exceed its parent's) and never NaN: a row that
    contains +inf gives -inf.

    Args:
        logits: (N, C) fp32, bf16 or fp16; computed in fp32.
        k: results per row, 1 to 64; may exceed C.
        ids: (C,) or (N, C) int32 or int64, at most 2**31 - 1; distinct within a row except for -1.
        target_ids: (R,) int64, distinct, below 2**31.

    Returns:
        Log-probabilities (N, k) fp32 in descending order and final ids (N, k) int64. Rows with fewer than k
        logits above -inf are padded with (-inf, 0).
    """
    name = "draft_topk"
    sizes = check_tensors(
        name,
        ("logits", logits, "NC", FLOATS),
        ("ids", ids, "C" if ids is not None and ids.dim() == 1 else "NC", INTEGERS),
        ("target_ids", target_ids, "R", INT64),
    )
    check_range(name, "k", k, 1, MOST_K)
    check_range(name, "columns", sizes["C"], 1, None)
    check_range(name, "the number of target_ids", sizes.get("R", 1), 1, None)
    maps = (None if mapping is None else mapping.contiguous() for mapping in (ids, target_ids))
    return _OP(backend, logits.contiguous(), k, *maps)


def draft_topk_reference(
    logits: Tensor, k: int, ids: Tensor | None = None, target_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute :func:`draft_topk` in PyTorch."""
    logits = logits.float()
    if ids is None:
        ids = torch.arange(logits.shape[1], device=logits.device)
    final, exists = ids.long(), ids >= 0
    if target_ids is not None:
        exists = exists & (final < len(target_ids))
        final = target_ids[final.clamp(0, len(target_ids) - 1)]
    logits = logits.masked_fill(~exists | logits.isnan(), _NONE)
    values, chosen = topk_by_id(logits, final.clamp(min=0), min(k, logits.shape[1]))
    # values - logsumexp would lose precision for a large maximum.
    highest = values[:, :1].masked_fill(values[:, :1] == _NONE, 0.0)
    total = (logits - highest).exp().sum(-1, keepdim=True)
    log_probs = (values - highest - total.log()).clamp(max=0.0)
    log_probs = log_probs.nan_to_num(nan=_NONE, neginf=_NONE)  # a row with +inf gives NaN: inf - inf
    chosen = chosen.masked_fill(values == _NONE, 0)
    missing = (0, k - values.shape[1])
    return F.pad(log_probs, missing, value=_NONE), F.pad(chosen, missing)


_OP = Op("draft_topk", draft_topk_reference, FLOATS)
