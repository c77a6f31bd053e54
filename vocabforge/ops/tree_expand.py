"""One round of a dynamic draft tree: the best children of W frontier nodes (EAGLE-2, Li et al. 2024)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import FP32, INT64, check_range, check_tensors
from .backend import Op
from .trees import WORD

MOST_KEPT = 1024


class Expansion(NamedTuple):
    """Children of a frontier."""

    cumulative: Tensor  # (B, W * k) fp32 scores of all children, in the order of (node, rank)
    # (B, keep) fp32 scores of the ``keep`` best children, best first, like the following fields.
    best_scores: Tensor
    tokens: Tensor  # (B, keep) int64
    parents: Tensor  # (B, keep) int64 index among the W nodes
    places: Tensor  # (B, keep) int64, ``first`` plus the index among the W * k children
    words: Tensor  # (B, keep, words) int64 bits of the parent and of the node itself; empty without ``above``


def tree_expand_reference(
    scores: Tensor,
    logprobs: Tensor,
    ids: Tensor,
    keep: int,
    first: int = 0,
    above: Tensor | None = None,
    slot: int = 0,
) -> Expansion:
    """Compute :func:`tree_expand` in PyTorch."""
    k = ids.shape[2]
    cumulative = (scores[:, :, None] + logprobs).flatten(1)  # (B, W * k)
    ordered, order = cumulative.sort(dim=1, descending=True, stable=True)
    places = order[:, :keep]
    parents = places // k
    if above is None:
        words = places.new_empty((*places.shape, 0))
    else:
        bits = torch.arange(slot, slot + keep, device=ids.device)
        own = torch.zeros(keep, above.shape[2], dtype=torch.int64, device=ids.device)
        own.scatter_(1, bits[:, None] // WORD, 1 << bits[:, None] % WORD)
        words = above.gather(1, parents[:, :, None].expand(-1, -1, above.shape[2])) | own
    return Expansion(
        cumulative,
        ordered[:, :keep].contiguous(),
        ids.flatten(1).gather(1, places),
        parents,
        places + first,
        words,
    )


_OP = Op("tree_expand", tree_expand_reference, FP32)


def tree_expand(
    scores: Tensor,
    logprobs: Tensor,
    ids: Tensor,
    *,
    keep: int,
    first: int = 0,
    above: Tensor | None = None,
    slot: int = 0,
    backend: str = "auto",
) -> Expansion:
    """Score the children of a frontier and keep the ``keep`` best; ties go to the lower (node, rank).

    Args:
        scores: (B, W) fp32 cumulative log-probabilities of the frontier's nodes.
        logprobs: (B, W, k) fp32 log-probabilities of each node's children; no NaN.
        ids: (B, W, k) int64 tokens of the children.
        keep: number of children to expand next, at most W * k and 1,024.
        first: position of the first child in the history of all rounds.
        above: (B, W, words) int64 bits of the frontier's nodes, see ``Frontier``; None: no bits are computed.
        slot: bit of the best child; the other children use the following bits.
    """
    sizes = check_tensors(
        "tree_expand",
        ("scores", scores, "BW", FP32),
        ("ids", ids, "BWk", INT64),
        ("logprobs", logprobs, "BWk", FP32),
        ("above", above, "BWw", INT64),
    )
    check_range("tree_expand", "the number of rows", sizes["B"], 1, None)
    check_range("tree_expand", "keep", keep, 1, min(sizes["W"] * sizes["k"], MOST_KEPT))
    if above is not None:
        check_range("tree_expand", "slot", slot, 0, WORD * above.shape[2] - keep)
        above = above.contiguous()
    given = (tensor.contiguous() for tensor in (scores, logprobs, ids))
    return Expansion(*_OP(backend, *given, keep, first, above, slot))
