"""Lossless sampled verification on the device, with point masses as draft distributions.

Leviathan et al. 2023; siblings in SpecInfer's multi-step form (Miao et al. 2024). Makes the decisions of
``decode/verify/point.py`` with the random numbers of ``decode/sampling.SeededChance``, except that sums are
exact here (``ops/masses.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import BOOL, FP32, INT64, check_range, fitting_backend
from .backend import Op
from .masses import draw_by_height, mass_parts, mass_value
from .philox import philox_uniform
from .tree_verify import check_tree

MOST_NODES, MOST_VOCAB = 256, 1 << 20  # limits of the kernels


class PointVerdict(NamedTuple):
    """Verification result of B trees; ``path`` and ``numbers`` as in :class:`~.tree_verify.Verdict`.

    Instead of choices, ``numbers`` end with the token after each node of the path. The last of these is sampled
    from the target (0 without a valid distribution).
    """

    path: Tensor
    numbers: Tensor
    draws_after: Tensor  # (B,) int64 position of the first unused number of each stream


def tree_verify_point_reference(
    tokens: Tensor,
    parents: Tensor,
    alive: Tensor | None,
    weights: Tensor,
    seeds: Tensor,
    draws: Tensor,
    levels: int,
) -> PointVerdict:
    """Compute :func:`tree_verify_point` in PyTorch."""
    nodes = tokens.shape[1]
    numbers = philox_uniform(seeds[:, None], draws[:, None] + torch.arange(nodes, device=draws.device))
    verdict = walk_point(tokens, parents, weights, numbers, levels, alive)
    return verdict._replace(draws_after=draws + verdict.draws_after)


class _Walk(NamedTuple):
    """State of B walks; (B,) each, ``path`` and ``follow`` (B, levels + 1).

    ``high``, ``low`` and ``support`` describe the remaining distribution at ``node``: its mass in two parts,
    and the number of tokens with positive mass.
    """

    node: Tensor
    depth: Tensor
    used: Tensor
    path: Tensor
    follow: Tensor
    high: Tensor
    low: Tensor
    support: Tensor


def walk_point(
    tokens: Tensor, parents: Tensor, weights: Tensor, uniforms: Tensor, levels: int, alive: Tensor | None
) -> PointVerdict:
    """Walk the trees with the given random numbers ``uniforms`` (B, N) float64, used in order as needed.

    Parents precede their children, so one pass over the nodes visits all nodes of the walk in order.
    ``draws_after`` of the result counts the numbers used.
    """
    batch, nodes = tokens.shape
    rows = torch.arange(batch, device=tokens.device)
    tried = torch.ones_like(tokens, dtype=torch.bool) if alive is None else alive
    whole = (*(part.sum(-1) for part in mass_parts(weights)), (weights > 0).sum(-1))  # (B, N) each
    zeros, places = torch.zeros_like(rows), torch.arange(levels + 1, device=rows.device)
    path = zeros[:, None].expand(-1, levels + 1)
    walk = _Walk(zeros, zeros, zeros, path, path, *(part[:, 0] for part in whole))
    for child in range(1, nodes):
        token = tokens[:, child]
        siblings = tried & (parents == walk.node[:, None])
        turn = siblings[:, child] & (walk.support > 0)
        again = (siblings[:, 1:child] & (tokens[:, 1:child] == token[:, None])).any(1)  # already rejected
        weight = torch.where(again, 0.0, weights[rows, walk.node, token])
        own = (*mass_parts(weight), (weight > 0).long())
        left = [now - part for now, part in zip(walk[5:], own)]
        agreed = uniforms[rows, walk.used] * mass_value(walk.high, walk.low) < weight
        accepted = turn & (agreed | (left[2] == 0))  # last possible token: reached only through rounding
        distribution = [
            torch.where(accepted, below[:, child], torch.where(turn, less, now))
            for below, less, now in zip(whole, left, walk[5:])
        ]
        follow = torch.where(accepted[:, None] & (places == walk.depth[:, None]), token[:, None], walk.follow)
        node, depth = torch.where(accepted, child, walk.node), walk.depth + accepted
        path = torch.where(places >= depth[:, None], node[:, None], walk.path)
        walk = _Walk(node, depth, walk.used + turn, path, follow, *distribution)
    return _own_token(
        walk, tokens, tried & (parents == walk.node[:, None]), weights[rows, walk.node], uniforms
    )


def _own_token(
    walk: _Walk, tokens: Tensor, rejected: Tensor, distribution: Tensor, uniforms: Tensor
) -> PointVerdict:
    """Finish the walk: draw from the last node's distribution (B, V) without the rejected children (B, N)."""
    levels = walk.path.shape[1] - 1
    nodes, places = (torch.arange(size, device=distribution.device) for size in (tokens.shape[1], levels + 1))
    rejected = rejected & (nodes > 0)  # the root is its own parent
    gone = torch.zeros_like(distribution, dtype=torch.int64).scatter_add(1, tokens, rejected.long()) > 0
    drawn = draw_by_height(distribution.masked_fill(gone, 0.0), uniforms.gather(1, walk.used[:, None])[:, 0])
    valid = walk.support > 0
    own = torch.where(valid, drawn, 0)
    follow = torch.where(places >= walk.depth[:, None], own[:, None], walk.follow)
    good = torch.where(valid, levels + 1, walk.depth)
    numbers = torch.cat([walk.depth[:, None], good[:, None], follow], 1)
    return PointVerdict(walk.path.contiguous(), numbers, walk.used + valid)


_OP = Op("tree_verify_point", tree_verify_point_reference, frozenset({torch.int64}))


def tree_verify_point(
    tokens: Tensor,
    parents: Tensor,
    alive: Tensor | None,
    weights: Tensor,
    seeds: Tensor,
    draws: Tensor,
    *,
    levels: int,
    backend: str = "auto",
) -> PointVerdict:
    """Verify draft trees by walking down from the root.

    Each child is accepted with its probability under the remaining distribution and otherwise removed from
    it. If no child is left, a token is drawn from the remaining distribution. Every decision uses the next
    number of the row's stream.

    Args:
        tokens, parents: (B, N) int64 of B trees; node 0 is the root and its own parent, parents come first.
        alive: bool (B, N), False for padding nodes; None: no padding.
        weights: (B, N, V) fp32 target distribution at each node up to a factor, at most 1, as returned by
            ``target_weights_of``. All zeros: no valid distribution, the walk ends there.
        seeds, draws: (B,) int64 seeds of the rows' streams (``ops/philox.py``) and positions of their first
            unused numbers.
        levels: depth of the trees below the root.
        backend: ``auto`` uses the reference for more than 256 nodes.
    """
    op = "tree_verify_point"
    sizes = check_tree(
        op,
        levels,
        ("tokens", tokens, "BN", INT64),
        ("parents", parents, "BN", INT64),
        ("alive", alive, "BN", BOOL),
        ("weights", weights, "BNV", FP32),
        ("seeds", seeds, "B", INT64),
        ("draws", draws, "B", INT64),
    )
    check_range(op, "the vocabulary", sizes["V"], 1, MOST_VOCAB)
    fits, needs = tokens.shape[1] <= MOST_NODES, f"at most {MOST_NODES} nodes"
    backend = fitting_backend(op, backend, tokens, fits, needs)
    alive = None if alive is None else alive.contiguous()
    rest = (tensor.contiguous() for tensor in (weights, seeds, draws))
    return PointVerdict(*_OP(backend, tokens.contiguous(), parents.contiguous(), alive, *rest, levels))
