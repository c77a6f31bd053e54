"""Selection of the best nodes of a dynamic draft tree as a tree of static size (EAGLE-2, Li et al. 2024)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.errors import UsageError
from .arguments import FP32, INT64, check_range, check_tensors, fitting_backend
from .backend import Op
from .trees import ancestors_of, bits_of

MOST_NODES, MOST_HISTORY = 256, 32_768  # limits of the kernels


class SelectedTree(NamedTuple):
    """B trees of N nodes, root first, parents before children."""

    tokens: Tensor  # (B, N) int64, like the next two
    parents: Tensor
    depths: Tensor
    ancestors: Tensor  # bool (B, N, N); [b, i, j] is True if j is i or an ancestor of i
    words: Tensor  # (B, N, ceil(N / 64)) int64, the ancestors as bits: bit j % 64 of word j // 64


def tree_select_reference(
    roots: Tensor, tokens: Tensor, scores: Tensor, parents: Tensor, nodes: int, levels: int
) -> SelectedTree:
    """Compute :func:`tree_select` in PyTorch."""
    batch, size = tokens.shape
    order = scores.sort(dim=1, descending=True, stable=True).indices
    chosen = order[:, : nodes - 1].sort(1).values  # history order: parents before children
    # The extra entry maps parent -1 to the root.
    place = torch.zeros((batch, size + 1), dtype=torch.int64, device=tokens.device)
    place.scatter_(1, chosen, torch.arange(1, nodes, device=tokens.device).expand(batch, -1))
    above = parents.gather(1, chosen // (size // parents.shape[1]))
    above = place.gather(1, torch.where(above < 0, size, above))
    above = torch.cat([torch.zeros_like(roots[:, None]), above], 1)  # (B, N)
    ancestors = ancestors_of(above, levels)
    kept = torch.cat([roots[:, None], tokens.gather(1, chosen)], 1)
    return SelectedTree(kept, above, ancestors.sum(-1) - 1, ancestors, bits_of(ancestors))


_OP = Op("tree_select", tree_select_reference, frozenset({torch.int64}))


def tree_select(
    roots: Tensor,
    tokens: Tensor,
    scores: Tensor,
    parents: Tensor,
    *,
    nodes: int,
    levels: int,
    backend: str = "auto",
) -> SelectedTree:
    """Select the root and the ``nodes - 1`` best nodes of a history in its order; ties go to earlier nodes.

    A node must not score above its parent and must come after it; then the parent of every selected node is
    selected as well. This is asserted on the CPU. On other devices a node without its parent is attached to
    the root.

    Args:
        roots: (B,) int64 tokens of the roots.
        tokens: (B, n) int64 tokens of the history's nodes.
        scores: (B, n) fp32 cumulative log-probabilities; no NaN.
        parents: (B, E) int64 positions in the history of the expanded nodes, -1 for the root; the n / E
            children of each are consecutive. With E = n, the parent of each node.
        nodes: nodes N of the tree including the root; at most n + 1, and 256 in the kernels.
        levels: depth of the tree below the root.
        backend: ``auto`` uses the reference for trees and histories that exceed the kernels' limits.
    """
    sizes = check_tensors(
        "tree_select",
        ("tokens", tokens, "Bn", INT64),
        ("roots", roots, "B", INT64),
        ("scores", scores, "Bn", FP32),
        ("parents", parents, "BE", INT64),
    )
    size, count = sizes["n"], sizes["E"]
    check_range("tree_select", "the number of rows", sizes["B"], 1, None)
    check_range("tree_select", "the number of parents", count, 1, size)
    if size % count:
        raise UsageError(
            "tree_select: not every parent has the same number of children",
            got=f"{size} nodes of {count} parents",
        )
    check_range("tree_select", "nodes", nodes, 2, size + 1)
    check_range("tree_select", "levels", levels, 1, None)
    fits = nodes <= MOST_NODES and size <= MOST_HISTORY
    needs = f"at most {MOST_NODES} nodes of a history of {MOST_HISTORY:,}"
    backend = fitting_backend("tree_select", backend, tokens, fits, needs)
    if not tokens.is_cuda and not torch.compiler.is_compiling():  # on CUDA this would synchronise
        _assert_closed(scores, parents)
    history = (tensor.contiguous() for tensor in (roots, tokens, scores, parents))
    return SelectedTree(*_OP(backend, *history, nodes, levels))


def _assert_closed(scores: Tensor, parents: Tensor) -> None:
    """Assert that selecting the best nodes of this history also selects their parents."""
    parents = parents.repeat_interleave(scores.shape[1] // parents.shape[1], 1)
    above = scores.gather(1, parents.clamp(min=0))
    places = torch.arange(parents.shape[1], device=parents.device)
    fine = (parents < 0) | ((scores <= above) & (parents < places))
    assert bool(fine.all()), "a draft node scores above its parent or comes before it"
