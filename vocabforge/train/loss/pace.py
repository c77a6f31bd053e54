"""D-PACE: draft weights by contribution to the expected accepted length (arXiv 2605.18810).

Let q_k be the drafter's probability of the text at draft k of a block, and ``qt_k = (1 - c) q_k + c``::

    w_j = sum_{i >= j} prod_{k <= i} qt_k

For c = 0 this is the derivative of the expected length ``sum_i prod_{k <= i} q_k`` with respect to log q_j. A
draft that is not counted is 1 in the products and 0 in the sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.target.logits import accumulation, scores
from .fused import LossInputs

SMOOTHING = 0.5  # c


@torch.no_grad()
def label_chance(x: LossInputs, budget: int) -> Tensor:
    """Return the drafter's probability (M,) fp32 of ``x.label``, 0 outside its vocabulary.

    Args:
        budget: bytes of logits at a time.
    """
    dtype = x.product_dtypes()[0]
    out, head, column = accumulation(dtype), x.whole_head.detach().to(dtype), x.label_column
    some = max(1, budget // (2 * out.itemsize * len(head)))  # factor 2: exponentials of logsumexp
    parts = []
    with torch.autocast(x.draft.device.type, enabled=False):
        for draft, place in zip(x.draft.split(some), column.split(some)):
            logits = x.draft_transform(scores(draft, head, out))
            label = logits.gather(-1, place.clamp(min=0)[:, None])[:, 0]
            parts.append(torch.where(place >= 0, (label - logits.logsumexp(-1)).exp(), 0.0).float())
    return torch.cat(parts)


def pace_weights(chance: Tensor, step: Tensor, place: Tensor, smoothing: float = SMOOTHING) -> Tensor:
    """Compute the weights w (M,) of draft rows.

    Args:
        chance: q (M,), constant.
        step, place: (M,) draft index and block of each row; pairs are unique.
        smoothing: c in [0, 1].
    """
    if not len(chance):
        return chance
    shape = int(step.max()) + 1, int(place.max()) + 1
    smooth, counted = chance.new_ones(shape), chance.new_zeros(shape)
    smooth[step, place], counted[step, place] = (1 - smoothing) * chance + smoothing, 1.0
    reached = smooth.cumprod(0) * counted
    return reached.flip(0).cumsum(0).flip(0)[step, place]
