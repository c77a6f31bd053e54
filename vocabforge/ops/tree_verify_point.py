"""Lossless sampled verification where draft tokens are point masses, on the device.

Leviathan et al. 2023 with point masses as the draft distribution; siblings in SpecInfer's multi-step form (Miao et al.
2024). The decisions of ``decode/verify/point.py`` with the numbers of ``decode/sampling.SeededChance``, but for sums,
which are exact here (``ops/masses.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .backend import Op
from .checks import check_dtype, check_range, check_shape, check_together, fitting_backend
from .masses import draw_by_height, mass_parts, mass_value
from .philox import philox_uniform
from .tree_verify import check_tree

MOST_NODES, MOST_VOCAB = 256, 1 << 20  # of the kernels


class PointVerdict(NamedTuple):
    """Of B trees: ``path`` (B, levels + 1) int64, the accepted nodes from the root on, the last one repeated;
    ``numbers`` (B, levels + 3) int64: the accepted depth; how many nodes of the path stand above the first without a
    distribution (levels + 1 where all have one); the token that follows each node of the path, the last being the
    target's own (0 without a distribution); ``draws_after`` (B,) int64, the first number of each stream that has
    decided nothing yet."""

    path: Tensor
    numbers: Tensor
    draws_after: Tensor


def tree_verify_point_reference(
    tokens: Tensor,
    parents: Tensor,
    alive: Tensor | None,
    weights: Tensor,
    seeds: Tensor,
    draws: Tensor,
    levels: int,
) -> PointVerdict:
    """As :func:`tree_verify_point`, in PyTorch."""
    nodes = tokens.shape[1]
    numbers = philox_uniform(seeds[:, None], draws[:, None] + torch.arange(nodes, device=draws.device))
    verdict = walk_point(tokens, parents, weights, numbers, levels, alive)
    return verdict._replace(draws_after=draws + verdict.draws_after)


class _Walk(NamedTuple):
    """Where each of B walks stands: (B,) each, ``path`` and ``follow`` (B, levels + 1); the last three are of what is
    left of the distribution at ``node``: the mass in two parts, and how many tokens have any."""

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
    """The walk for given random numbers: ``uniforms`` (B, N) float64 decide in their order, as many as are needed;
    ``draws_after`` counts them.

    Children stand behind their parents, so that one pass over the nodes tries all that the walk comes to, in order.
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
        again = (siblings[:, 1:child] & (tokens[:, 1:child] == token[:, None])).any(1)  # its weight is gone
        weight = torch.where(again, 0.0, weights[rows, walk.node, token])
        own = (*mass_parts(weight), (weight > 0).long())
        left = [now - part for now, part in zip(walk[5:], own)]
        agreed = uniforms[rows, walk.used] * mass_value(walk.high, walk.low) < weight
        accepted = turn & (agreed | (left[2] == 0))  # nothing else is possible: only rounding can lead there
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
    """The end of the walk: a draw from what the rejected children (B, N) leave of the last node's distribution (B,
    V)."""
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
    """Walk down from the root: accept each child in turn with its share of the distribution, else take it out of the
    distribution; where no child is left, draw from what remains. Every decision takes the next number of the row's
    stream.

    Args:
        tokens, parents: (B, N) int64 of B trees; node 0 is the root and its own parent, parents come first.
        alive: bool (B, N), False where a node only pads; None: all are alive.
        weights: (B, N, V) fp32, the target's distribution at each node up to a factor, no weight above 1; such as
            ``target_weights_of`` gives. All zeros: no distribution, and the walk ends there.
        seeds, draws: (B,) int64 of the rows' streams (``ops/philox.py``), and the place of the first fresh number.
        levels: of the trees, below the root.
        backend: ``auto`` takes the reference for more than 256 nodes.
    """
    op = "tree_verify_point"
    check_tree(op, tokens, parents, alive, levels)
    check_shape(op, "weights", weights, *tokens.shape, None)
    check_dtype(op, "weights", weights, {torch.float32})
    check_range(op, "the vocabulary", weights.shape[2], 1, MOST_VOCAB)
    for name, tensor in (("seeds", seeds), ("draws", draws)):
        check_shape(op, name, tensor, len(tokens))
        check_dtype(op, name, tensor, {torch.int64})
    check_together(op, (tokens, parents, alive, weights, seeds, draws))
    fits, needs = tokens.shape[1] <= MOST_NODES, f"at most {MOST_NODES} nodes"
    backend = fitting_backend(op, backend, tokens, fits, needs)
    given = (tokens, parents, alive, weights, seeds, draws)
    return PointVerdict(*_OP(backend, *(None if one is None else one.contiguous() for one in given), levels))
