"""Verification of draft trees against the target's choices, which are greedy or sampled (exact match)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import BOOL, INT64, TensorRow, check_range, check_tensors, fitting_backend
from .backend import Op

MOST_NODES = 1024  # limit of the kernels


class Verdict(NamedTuple):
    """Verification result of B trees."""

    path: Tensor  # (B, levels + 1) int64 accepted nodes from the root on, padded by repeating the last one
    # (B, levels + 3) int64: the accepted depth; the number of path nodes before the first one without a valid
    # distribution (levels + 1 if all are valid); the target's choice at each node of the path.
    numbers: Tensor


def tree_verify_reference(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    ancestors: Tensor,
    choices: Tensor,
    valid: Tensor,
    alive: Tensor | None,
    levels: int,
) -> Verdict:
    """Compute :func:`tree_verify` in PyTorch."""
    agrees = tokens == choices.gather(1, parents)  # (B, N)
    agrees = agrees | (torch.arange(tokens.shape[1], device=tokens.device) == 0)
    if alive is not None:
        agrees = agrees & alive
    accepted = (~ancestors | agrees[:, None, :]).all(-1)  # the node and all its ancestors agree
    depth, last = torch.where(accepted, depths, -1).max(-1, keepdim=True)  # (B, 1), the first of equal depths
    nodes = torch.arange(tokens.shape[1], device=last.device)
    above = ancestors.gather(1, last[:, :, None].expand(-1, -1, len(nodes)))[:, 0]  # (B, N)
    # Nodes of the path go to the column of their depth, the others to an extra column that is dropped.
    places = torch.where(above, depths, levels + 1)
    path = last.repeat(1, levels + 2).scatter(1, places, nodes.expand_as(places))[:, :-1].contiguous()
    good = valid.gather(1, path).long().cumprod(1).sum(1, keepdim=True)
    return Verdict(path, torch.cat([depth, good, choices.gather(1, path)], 1))


_OP = Op("tree_verify", tree_verify_reference, frozenset({torch.int64}))


def tree_verify(
    tokens: Tensor,
    parents: Tensor,
    depths: Tensor,
    ancestors: Tensor,
    choices: Tensor,
    valid: Tensor,
    *,
    levels: int,
    alive: Tensor | None = None,
    backend: str = "auto",
) -> Verdict:
    """Find the longest root path whose tokens match the target's choices at their parents; the first if tied.

    Args:
        tokens, parents, depths: (B, N) int64 of B trees; node 0 is the root and its own parent, parents come
            first.
        ancestors: bool (B, N, N); [b, i, j] is True if j is i or an ancestor of i. The kernel follows
            ``parents`` instead, which is equivalent.
        choices: (B, N) int64 choice of the target at each node: argmax or sampled token.
        valid: bool (B, N), False if the target's logits at a node are not a valid distribution.
        levels: depth of the trees below the root.
        alive: bool (B, N), False for padding nodes; None: no padding.
        backend: ``auto`` uses the reference for more than 1,024 nodes.
    """
    check_tree(
        "tree_verify",
        levels,
        ("tokens", tokens, "BN", INT64),
        ("parents", parents, "BN", INT64),
        ("alive", alive, "BN", BOOL),
        ("ancestors", ancestors, "BNN", BOOL),
        ("depths", depths, "BN", INT64),
        ("choices", choices, "BN", INT64),
        ("valid", valid, "BN", BOOL),
    )
    fits, needs = tokens.shape[1] <= MOST_NODES, f"at most {MOST_NODES:,} nodes"
    backend = fitting_backend("tree_verify", backend, tokens, fits, needs)
    given = (tensor.contiguous() for tensor in (tokens, parents, depths, ancestors, choices, valid))
    return Verdict(*_OP(backend, *given, None if alive is None else alive.contiguous(), levels))


def check_tree(op: str, levels: int, *rows: TensorRow) -> dict[str, int]:
    """Check the arguments of a verification op of B trees with N nodes; return the sizes by letter."""
    sizes = check_tensors(op, *rows)
    check_range(op, "the number of nodes", sizes["B"] * sizes["N"], 1, None)
    check_range(op, "levels", levels, 0, None)
    return sizes
