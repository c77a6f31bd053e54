"""Drafting states: inputs and outputs of a drafter at every step of the unroll, and a router's labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...models.drafters.interface import Drafter
from ...models.drafters.parallel import is_parallel
from ...models.heads.registry import DraftState
from ...ops.ordering import topk_lowest_id
from ..capture.online import CapturedBatch
from ..ttt import TTTStep, shift_left, unroll

_LABEL_BYTES = 128 * 2**20


@dataclass(frozen=True)
class DraftingRows:
    """Counted rows of one draft step.

    Attributes:
        state: step, input tokens (M,) and input hidden states (M, H).
        hidden: (M, H) input of the head.
        where: row and column of each in the batch.
        counted: bool (B, T), the same as a mask.
    """

    state: DraftState
    hidden: Tensor
    where: tuple[Tensor, ...]
    counted: Tensor


@torch.no_grad()
def drafting_rows(drafter: Drafter, batch: CapturedBatch, steps: int) -> Iterator[DraftingRows]:
    """Yield the states of every draft step of a batch, exactly as a router reads them in decoding."""
    first = drafter.fuse(batch.states(drafter.reads))
    for step, state in states_fed(drafter, batch, first, unroll(drafter, batch, steps)):
        where = step.counted.nonzero(as_tuple=True)
        row = drafter.read(step.g[where])[:, : drafter.config.hidden_size]  # DSpark's without its bias
        yield DraftingRows(state, row, where, step.counted)


def states_fed(
    drafter: Drafter, batch: CapturedBatch, first: Tensor, unrolled: Iterable[TTTStep]
) -> Iterator[tuple[TTTStep, DraftState]]:
    """Yield every step of an unroll with the inputs of its counted rows.

    Step k of row t reads x_{t+1+k} and the hidden state of step k - 1, or ``first`` at step 0. All steps of a
    block read x_{t+1} and ``first`` of row t.

    Args:
        first: (B, T, H) output of ``fuse``.
    """
    previous = first
    for step in unrolled:
        places = step.places(batch.input_ids.shape[1])
        if is_parallel(drafter):
            tokens = shift_left(batch.input_ids, 1).flatten()[places]
            yield step, DraftState(step.index, tokens, first.flatten(0, 1)[places])
            continue
        tokens = shift_left(batch.input_ids, step.index + 1).flatten()[places]
        yield step, DraftState(step.index, tokens, previous[step.counted])
        previous = step.g


def best_columns(logits: Tensor, top_n: int) -> Tensor:
    """Return the n best columns (N, n) int64 of (N, R') fp32 logits, unordered; ties go to lower columns."""
    n = min(top_n, logits.shape[1])
    values, best = logits.topk(n, dim=-1)
    last = values[:, -1:]
    # topk does not define ties; topk_lowest_id does, but it is slow: use it only for rows with ties.
    tied = (logits == last).sum(-1) > (values == last).sum(-1)  # (N,)
    if bool(tied.any()):
        best[tied] = topk_lowest_id(logits[tied], n)[1]
    return best


@torch.no_grad()
def best_tokens(hidden: Tensor, weight: Tensor, known: int, top_n: int) -> Tensor:
    """Return the best columns (N, n) int64 of each hidden row, with few rows of logits at a time.

    Args:
        hidden: (N, H) input of the head.
        weight: (R, H) head rows; columns from ``known`` on belong to no cluster.
    """
    at_once = max(1, _LABEL_BYTES // (16 * len(weight)))
    logits = (F.linear(some.to(weight.dtype), weight).float()[:, :known] for some in hidden.split(at_once))
    return torch.cat([best_columns(some, top_n) for some in logits])


def labels_of(best: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Return a router's labels: a cluster is positive iff it contains one of the best tokens.

    Args:
        best: (N, n) best columns of each row.
        cluster: (R',) cluster of each column.
        clusters: M.

    Returns:
        bool (N, M).
    """
    labels = torch.zeros(len(best), clusters, dtype=torch.bool, device=best.device)
    return labels.scatter_(-1, cluster[best], True)


def router_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute binary cross-entropy with logits, averaged over M: (N, M), (N, M) -> (N,) fp32."""
    losses = F.binary_cross_entropy_with_logits(scores.float(), labels.float(), reduction="none")
    return losses.mean(-1)


@dataclass(frozen=True)
class RouterLoss:
    """Loss of a router that is trained with its drafter.

    Attributes:
        total: fp32 scalar with gradient, sum_i weight_i * loss_i.
        losses: fp32 (M,) loss_i without gradient.
        correct: bool (M,) the cluster with the highest score contains one of the drafter's best tokens.
    """

    total: Tensor
    losses: Tensor
    correct: Tensor


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Compute the average precision of each row's ranking: (N, M) scores, bool (N, M) labels -> (N,) fp32.

    Ties go to the lower cluster. Rows without a positive get 0.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    hits = labels.gather(-1, order).float()  # (N, M) best first
    place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    precision = hits.cumsum(-1) / place
    return (precision * hits).sum(-1) / hits.sum(-1).clamp(min=1.0)
