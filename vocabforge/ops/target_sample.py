"""Target distribution after temperature, top-k, top-p and min-p, and one draw per row from it.

Implements the transform and the draw of ``decode/sampling.py``, without penalties. Exponentials are correctly
rounded and sums are exact (``ops/masses.py``), so every implementation of this op gives the same bits. Tokens
differ from ``decode/sampling.py`` only if the random number is within rounding error of a boundary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import INT64, TensorRow, check_range, check_tensors
from .backend import FLOATS, Op
from .masses import draw_by_height, mass_heights
from .philox import philox_uniform

MOST_VOCAB = 1 << 20


def target_weights_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Compute :func:`target_weights_of` in PyTorch."""
    scores, best = logits.float(), logits.float().max(-1).indices[:, None]
    highest = scores.gather(1, best)  # (R, 1), NaN if the row contains one
    infinite = highest == torch.inf  # only +inf logits have probability
    scores = torch.where(infinite, torch.where(scores == torch.inf, 0.0, -torch.inf), scores)
    # Subtract the maximum before dividing: a tiny temperature would otherwise give inf and then NaN.
    ahead = (scores - torch.where(infinite, 0.0, highest)).double()
    greedy = temperature[:, None] == 0
    weights = (ahead / torch.where(greedy, 1.0, temperature[:, None])).float().double().exp().float()
    weights = _most_probable(scores, weights, top_k[:, None], top_p[:, None])
    weights = weights.masked_fill(weights < min_p[:, None].float(), 0.0)  # the largest weight is 1
    only = torch.zeros_like(weights).scatter(1, best, 1.0)
    return torch.where(highest > -torch.inf, torch.where(greedy, only, weights), 0.0)


def _most_probable(scores: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero the weights excluded by top-k and then by top-p; ties go to the lower id."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    ranks = torch.arange(scores.shape[1], device=scores.device)
    ordered = weights.gather(1, order).masked_fill((top_k > 0) & (ranks >= top_k), 0.0)
    heights = mass_heights(ordered)
    enough = (heights < top_p * heights[:, -1:]).sum(1, keepdim=True)  # first rank that reaches top_p
    ordered = ordered.masked_fill((top_p < 1) & (ranks > enough), 0.0)
    return torch.zeros_like(weights).scatter(1, order, ordered)


def target_sample_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    draws: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute :func:`target_sample` in PyTorch."""
    highest, best = logits.float().max(-1)
    valid = highest > -torch.inf
    weights = target_weights_reference(logits, temperature, top_k, top_p, min_p)
    drawn = draw_by_height(weights, philox_uniform(seeds, draws))
    return torch.where(valid & (temperature > 0), drawn, best), valid


_WEIGHTS = Op("target_weights_of", target_weights_reference, FLOATS)
_SAMPLE = Op("target_sample", target_sample_reference, FLOATS)


def target_weights_of(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, *, backend: str = "auto"
) -> Tensor:
    """Compute each row's target distribution after the transform, up to a factor.

    Args:
        logits: (R, V) fp32, bf16 or fp16; V at most 2^20.
        temperature, top_p, min_p: (R,) fp64 (or fp32), each as in ``SamplingParams``; temperature 0 is
            greedy.
        top_k: (R,) int64, 0 keeps all.

    Returns:
        (R, V) fp32 with largest weight 1 per row, exactly 0 outside the support; all 0 if the row is not a
        valid distribution (NaN, or nothing above -inf).
    """
    settings = _checked("target_weights_of", logits, temperature, top_k, top_p, min_p)
    weights: Tensor = _WEIGHTS(backend, logits.contiguous(), *settings)
    return weights


def target_sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    draws: Tensor,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Draw one token per row from the target distribution after the transform.

    Args:
        logits, temperature, top_k, top_p, min_p: see :func:`target_weights_of`.
        seeds: (R,) int64 seeds of the rows' random streams.
        draws: (R,) int64 positions in the streams. The caller advances them, so that no number is used twice.

    Returns:
        choices (R,) int64 and valid (R,) bool, False if the row contains NaN or nothing above -inf (its
        choice is then undefined).
    """
    stream = ("seeds", seeds, "R", INT64), ("draws", draws, "R", INT64)
    settings = _checked("target_sample", logits, temperature, top_k, top_p, min_p, *stream)
    choices, valid = _SAMPLE(backend, logits.contiguous(), *settings, seeds.contiguous(), draws.contiguous())
    return choices, valid


def _checked(
    op: str,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *others: TensorRow,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    wide = {torch.float32, torch.float64}
    sizes = check_tensors(
        op,
        ("logits", logits, "RV", FLOATS),
        ("temperature", temperature, "R", wide),
        ("top_k", top_k, "R", INT64),
        ("top_p", top_p, "R", wide),
        ("min_p", min_p, "R", wide),
        *others,
    )
    check_range(op, "the number of rows", sizes["R"], 1, None)
    check_range(op, "the vocabulary", sizes["V"], 1, MOST_VOCAB)
    temperature, top_p, min_p = (setting.double().contiguous() for setting in (temperature, top_p, min_p))
    return temperature, top_k.contiguous(), top_p, min_p
