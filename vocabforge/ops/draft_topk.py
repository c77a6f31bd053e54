"""What a draft head answers: log-softmax over a row's columns, the k best, as target ids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import UsageError
from .backend import FLOATS, Op
from .checks import INTEGERS, check_dtype, check_range, check_shape, check_together
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
    """Log-softmax over each row's columns and its k best; ties go to the lower final id.

    The final id of column c is ``target_ids[ids[c]]``; where either is missing, that step is left out. A column of
    id -1, or of one outside ``target_ids``, does not exist: it takes no probability. So does a NaN logit. No
    log-probability is above 0 (a child's score would exceed its parent's), and none is NaN: a row that holds +inf
    gives -inf.

    Args:
        logits: (N, C) fp32, bf16 or fp16; computed in fp32.
        k: 1 to 64, the answers of a row; it may exceed C.
        ids: (C,) or (N, C) int32 or int64, distinct in a row but for -1; none above 2**31 - 1.
        target_ids: (R,) int64, distinct, below 2**31.

    Returns:
        log-probabilities (N, k) fp32, descending, and final ids (N, k) int64. A row with fewer than k logits above
        -inf ends in (-inf, 0).
    """
    name = "draft_topk"
    check_shape(name, "logits", logits, None, None)
    check_dtype(name, "logits", logits, FLOATS)
    check_range(name, "k", k, 1, MOST_K)
    check_range(name, "columns", logits.shape[1], 1, None)
    check_together(name, (logits, ids, target_ids))
    if ids is not None:
        check_dtype(name, "ids", ids, INTEGERS)
        if ids.dim() == 1:
            check_shape(name, "ids", ids, logits.shape[1])
        else:
            check_shape(name, "ids", ids, *logits.shape)
        ids = ids.contiguous()
    if target_ids is not None:
        check_shape(name, "target_ids", target_ids, None)
        check_dtype(name, "target_ids", target_ids, {torch.int64})
        if not len(target_ids):
            raise UsageError(f"{name}: target_ids name nothing", got="(0,)", expected="one id at least")
        target_ids = target_ids.contiguous()
    return _OP(backend, logits.contiguous(), k, ids, target_ids)


def draft_topk_reference(
    logits: Tensor, k: int, ids: Tensor | None = None, target_ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`draft_topk`, in PyTorch."""
    logits = logits.float()
    if ids is None:
        ids = torch.arange(logits.shape[1], device=logits.device)
    final, exists = ids.long(), ids >= 0
    if target_ids is not None:
        exists = exists & (final < len(target_ids))
        final = target_ids[final.clamp(0, len(target_ids) - 1)]
    logits = logits.masked_fill(~exists | logits.isnan(), _NONE)
    values, chosen = topk_by_id(logits, final.clamp(min=0), min(k, logits.shape[1]))
    # values - logsumexp would round to a step of the maximum's size.
    highest = values[:, :1].masked_fill(values[:, :1] == _NONE, 0.0)
    total = (logits - highest).exp().sum(-1, keepdim=True)
    found = (values - highest - total.log()).clamp(max=0.0)
    found = found.nan_to_num(nan=_NONE, neginf=_NONE)  # NaN beside +inf: inf - inf
    chosen = chosen.masked_fill(values == _NONE, 0)
    missing = (0, k - values.shape[1])
    return F.pad(found, missing, value=_NONE), F.pad(chosen, missing)


_OP = Op("draft_topk", draft_topk_reference, FLOATS)
