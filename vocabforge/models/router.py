"""The router: which vocabulary clusters the next draft token may come from (DynaSpec).

``[e(x_t) ; h_{t-1}]`` -> MLP -> one score a cluster. It reads what the drafter is *fed* in a step, not what
the step makes, so that it can run beside the drafter's layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import MismatchError

DEFAULT_TOP_N = 10
_EPS = 1e-12  # far below the mean square of any embedding


def default_width(hidden_size: int) -> int:
    """Width of the hidden layers, our choice: d / 4."""
    return max(1, hidden_size // 4)


class Router(nn.Module):
    """MLP 2d -> width -> M with SiLU; DynaSpec leaves depth, width and activation open: our choice.

    Both inputs are divided by their root mean square, without a learned scale (our choice): embeddings and
    hidden states of different targets, and of step 0 and later steps, differ a hundredfold in scale.

    Args:
        hidden_size: d.
        assignment: (V,) cluster 0 .. M - 1 of each id, as in a ``clusters`` artefact.
        clusters: M.
        width: of the hidden layers; None is d / 4.
        depth: hidden layers.
    """

    assignment: Tensor

    def __init__(
        self, hidden_size: int, assignment: Tensor, clusters: int, width: int | None = None, depth: int = 1
    ) -> None:
        super().__init__()
        width = width or default_width(hidden_size)
        sizes = [2 * hidden_size, *[width] * depth]
        self.hidden_size, self.clusters, self.width, self.depth = hidden_size, clusters, width, depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.out = nn.Linear(width, clusters)
        self.register_buffer("assignment", assignment.to(torch.int64), persistent=False)

    @property
    def vocab_size(self) -> int:
        """Ids that are in a cluster."""
        return int(self.assignment.shape[0])

    @torch.no_grad()
    def init(self, seed: int, positives: float) -> None:
        """Fresh weights from a stream of their own; the last bias starts at the labels' base rate.

        Args:
            positives: clusters that a label names, at most (top-n).
        """
        stream = torch.Generator().manual_seed(seed)
        for layer in (*self.layers, self.out):
            assert isinstance(layer, nn.Linear)
            bound = 1.0 / math.sqrt(layer.in_features)
            layer.weight.copy_(torch.empty(layer.weight.shape).uniform_(-bound, bound, generator=stream))
            layer.bias.zero_()
        share = min(0.5, positives / self.clusters)
        self.out.bias.fill_(math.log(share / (1.0 - share)))

    def forward(self, embedded: Tensor, previous: Tensor) -> Tensor:
        """Scores (logits) of the clusters.

        Args:
            embedded: (N, d) e(x_t) of the tokens fed.
            previous: (N, d) hidden states fed.

        Returns:
            (N, M).
        """
        size = (self.hidden_size,)
        both = [F.rms_norm(part.float(), size, eps=_EPS) for part in (embedded, previous)]
        x = torch.cat(both, dim=-1).to(self.out.weight.dtype)  # (N, 2d)
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.out(x)


def cluster_rows(assignment: Tensor, target_ids: Tensor) -> Tensor:
    """(R',) cluster of each head row that has one: rows with an id in a cluster, a prefix of the R rows.

    Args:
        assignment: (V,) cluster of each id; padded ids of the LM head (V and above) have none.
        target_ids: (R,) ascending ids of the rows.

    Raises:
        MismatchError: no row has a cluster.
    """
    known = int((target_ids < len(assignment)).sum())
    if not known:
        raise MismatchError(
            "no token of the draft vocabulary is in a cluster",
            got=f"ids from {int(target_ids[0]) if len(target_ids) else 'none'}",
            expected=f"ids below {len(assignment):,}",
        )
    return assignment[target_ids[:known]]


def top_clusters(scores: Tensor, sizes: Tensor, budget: int, k: int) -> Tensor:
    """The ``budget`` best clusters of each row, and further ones in order until k tokens are in them.

    Args:
        scores: (N, M) fp32; ties to the lower cluster.
        sizes: (M,) int64 tokens that each cluster can give.
        budget: clusters wanted.
        k: tokens needed, at most ``sizes.sum()``.

    Returns:
        bool (N, M).
    """
    return first_clusters(*ranked_clusters(scores, sizes), budget, k)


def ranked_clusters(scores: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What :func:`top_clusters` knows before it is told how many.

    Returns:
        clusters (N, M) int64 of each row, best first, and the tokens (N, M) int64 in better clusters than each.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices  # (N, M)
    ordered = sizes[order]
    return order, ordered.cumsum(-1) - ordered


def first_clusters(order: Tensor, before: Tensor, budget: int, k: int) -> Tensor:
    """The rest of :func:`top_clusters`: bool (N, M)."""
    place = torch.arange(order.shape[-1], device=order.device)
    take = (place < budget) | (before < k)
    return torch.zeros_like(take).scatter_(-1, order, take)


def most_clusters(sizes: Sequence[int], budget: int, k: int) -> int:
    """Most clusters that :func:`top_clusters` opens for a row, whatever its scores: the smallest ones come first."""
    needed, tokens = 0, 0
    for size in sorted(sizes):
        if tokens >= k:
            break
        needed, tokens = needed + 1, tokens + size
    return max(budget, needed)
