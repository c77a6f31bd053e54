"""Drafting states: what a drafter is fed and makes at every step of the unroll, and a router's labels for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...capture.online import CapturedBatch
from ...models.drafters.interface import Drafter
from ...models.heads.registry import DraftState
from ...ops.ordering import topk_lowest_id
from ..ttt import shift_left, unroll


@dataclass(frozen=True)
class DraftingRows:
    """The counted rows of one draft step.

    Attributes:
        state: step, tokens fed (M,), hidden states fed (M, H).
        hidden: (M, H) what the head reads.
        where: row and column of each in the batch; ``counted`` bool (B, T) as a mask.
    """

    state: DraftState
    hidden: Tensor
    where: tuple[Tensor, ...]
    counted: Tensor


@torch.no_grad()
def drafting_rows(drafter: Drafter, batch: CapturedBatch, steps: int) -> Iterator[DraftingRows]:
    """The states of every draft step of a batch, exactly as a router reads them in decoding.

    Step k feeds x_{t+1+k} with the hidden state that step k - 1 made (``fuse(features)`` at step 0).
    """
    previous = drafter.fuse(batch.states(drafter.reads))
    for step in unroll(drafter, batch, steps):
        where = step.counted.nonzero(as_tuple=True)
        tokens = shift_left(batch.input_ids, step.index + 1)[where]
        state = DraftState(step.index, tokens, previous[where])
        yield DraftingRows(state, drafter.read(step.g[where]), where, step.counted)
        previous = step.g


def router_labels(logits: Tensor, cluster: Tensor, clusters: int, top_n: int) -> Tensor:
    """A cluster is positive iff it holds one of the top-n tokens: bool (N, M).

    Args:
        logits: (N, R) fp32 of the full-vocabulary drafter; columns from R' on are in no cluster.
        cluster: (R',) cluster of each column.
        clusters: M.
    """
    return labels_of(best_columns(logits[:, : len(cluster)], top_n), cluster, clusters)


def best_columns(logits: Tensor, top_n: int) -> Tensor:
    """The n best columns of (N, R') fp32 logits, in any order; ties at the border to the lower. int64 (N, n)."""
    n = min(top_n, logits.shape[1])
    values, best = logits.topk(n, dim=-1)
    last = values[:, -1:]
    # torch promises nothing about ties, and what does is several passes over (N, R'): only for rows that have some.
    tied = (logits == last).sum(-1) > (values == last).sum(-1)  # (N,)
    if bool(tied.any()):
        best[tied] = topk_lowest_id(logits[tied], n)[1]
    return best


def labels_of(best: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Multi-hot labels from the best columns: (N, n), (R',) cluster of each column -> bool (N, M)."""
    labels = torch.zeros(len(best), clusters, dtype=torch.bool, device=best.device)
    return labels.scatter_(-1, cluster[best], True)


def router_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy with logits: the mean over M, summed over rows. (N, M), (N, M) -> scalar fp32."""
    losses = F.binary_cross_entropy_with_logits(scores.float(), labels.float(), reduction="none")
    return losses.mean(-1).sum()


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Average precision of each row's ranking: (N, M) scores, bool (N, M) labels -> (N,) fp32.

    Ties go to the lower cluster. A row without a positive has 0.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    hits = labels.gather(-1, order).float()  # (N, M) best first
    place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    precision = hits.cumsum(-1) / place
    return (precision * hits).sum(-1) / hits.sum(-1).clamp(min=1.0)
