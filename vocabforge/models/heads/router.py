"""The router (DynaSpec) and its draft head: a shortlist of vocabulary clusters that changes in every step.

``[e(x_t) ; h_{t-1}]`` -> MLP -> one score per cluster. The router uses the *inputs* of a draft step, not its
outputs, so it can run in parallel with the drafter's layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError, MismatchError, UsageError
from ...ops.cluster_logits import cluster_logits, tiles_bound
from ...ops.few_rows import linear
from ...vocab.subset.schedule import schedule_sizes
from . import on_ops as head_ops
from .exact import ShortlistHead, check_width, masked, refuse_options, requests_of
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .on_ops import of_rows

_EPS = 1e-12  # far below the mean square of any embedding


def default_width(hidden_size: int) -> int:
    """Return the default width of the hidden layers, d / 4 (our choice)."""
    return max(1, hidden_size // 4)


class Router(nn.Module):
    """MLP 2d -> width -> M with SiLU; DynaSpec does not specify depth, width and activation (our choice).

    Both inputs are divided by their root mean square, without a learned scale (our choice), because their
    scales differ a hundredfold between targets and between step 0 and later steps.

    Args:
        hidden_size: d.
        assignment: (V,) cluster 0 .. M - 1 of each id, as in a ``clusters`` artefact.
        clusters: M.
        width: width of the hidden layers; None for d / 4.
        depth: number of hidden layers.
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
    def head_sizes(self) -> HeadSizes:
        ids = int(self.assignment.shape[0])
        return HeadSizes(self.hidden_size, ids, clusters=self.clusters, width=self.width, depth=self.depth)

    def blank(self) -> Router:
        """Return an untrained router with the same sizes and clusters."""
        return Router(self.hidden_size, self.assignment, self.clusters, self.width, self.depth)

    @torch.no_grad()
    def init(self, seed: int, positives: float) -> None:
        """Initialise from a separate random stream; the last bias encodes the labels' base rate.

        Args:
            positives: mean number of positive labels out of M.
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
        """Score the clusters (N, M) from the embedded input tokens and the input states, each (N, d)."""
        size = (self.hidden_size,)
        both = [F.rms_norm(part.float(), size, eps=_EPS) for part in (embedded, previous)]
        x = torch.cat(both, dim=-1).to(self.out.weight.dtype)  # (N, 2d)
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.out(x)


def cluster_rows(assignment: Tensor, target_ids: Tensor) -> Tensor:
    """Return the cluster of each head row that has one (R',); these rows are a prefix of the R rows.

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


def ranked_clusters(scores: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Rank each row's clusters, best first.

    Returns:
        the clusters (N, M) int64, and the number of tokens (N, M) int64 in all better clusters.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices  # (N, M)
    ordered = sizes[order]
    return order, ordered.cumsum(-1) - ordered


def first_clusters(order: Tensor, before: Tensor, budget: int, k: int) -> Tensor:
    """Select each row's ``budget`` best clusters, and more until they have k tokens: bool (N, M).

    Args:
        order, before: see :func:`ranked_clusters`.
        k: number of tokens needed, at most those of all clusters.
    """
    place = torch.arange(order.shape[-1], device=order.device)
    take = (place < budget) | (before < k)
    return torch.zeros_like(take).scatter_(-1, order, take)


def most_clusters(sizes: Sequence[int], budget: int, k: int) -> int:
    """Return the maximum number of clusters :func:`first_clusters` selects for a row (the smallest first)."""
    needed, tokens = 0, 0
    for size in sorted(sizes):
        if tokens >= k:
            break
        needed, tokens = needed + 1, tokens + size
    return max(budget, needed)


@dataclass
class _Ranking:
    """Ranked clusters; ``fed`` is kept until ``stream``, the side stream that computes them, is joined."""

    order: Tensor
    before: Tensor
    fed: DraftState
    stream: torch.cuda.Stream | None

    def join(self) -> tuple[Tensor, Tensor]:
        # The tensors need no record_stream: the inputs are kept alive until here, and the side stream starts
        # every step by waiting for the current stream, so it never overwrites data that is still in use.
        if self.stream is not None:
            torch.cuda.current_stream(self.order.device).wait_stream(self.stream)
        return self.order, self.before


class ClusterSlabs(nn.Module):
    """A copy of the head rows (R', H) sorted by cluster, so that each cluster is a contiguous slab.

    Attributes:
        weight, target_ids: the sorted rows and their ids.
        offsets: (M + 1,) int32 start of each slab; the last is R'.
        sizes: list of the M slab sizes, on the host.
    """

    weight: Tensor
    target_ids: Tensor
    offsets: Tensor

    def __init__(self, weight: Tensor, target_ids: Tensor, cluster: Tensor, clusters: int) -> None:
        super().__init__()
        order, sizes = cluster.argsort(stable=True), cluster.bincount(minlength=clusters)
        self.register_buffer("weight", weight.detach()[order], persistent=False)
        self.register_buffer("target_ids", target_ids[order], persistent=False)
        self.register_buffer("offsets", F.pad(sizes.cumsum(0), (1, 0)).int(), persistent=False)
        self.sizes: list[int] = sizes.tolist()
        self._tiles: dict[tuple[int, int, int], int] = {}

    def most_tiles(self, rows: int, budget: int, k: int) -> int:
        """Return the maximum number of tiles for ``rows`` hidden rows with a budget and ``k`` tokens each."""
        key = (rows, budget, k)
        if key not in self._tiles:
            clusters = min(rows * most_clusters(self.sizes, budget, k), len(self.sizes))
            self._tiles[key] = tiles_bound(self.sizes, clusters)
        return self._tiles[key]


class RouterHead(ShortlistHead):
    """DynaSpec's draft head: the shortlist is the union of the tokens of the best clusters.

    On the ops it uses a copy of the head sorted by cluster (1 GiB more for 128k rows of 4,096 in bf16).

    Args:
        base: the exact head; rows whose id is in no cluster (padding of the LM head) are never proposed.
        budgets: clusters at draft step 0, 1, ...; the last budget applies to deeper steps.
        rows: ``shared`` for one union for the rows of a request in a step, ``own`` for separate shortlists.
        ops: see ``HeadOptions.ops``.
    """

    KIND = "router"

    target_ids: Tensor
    cluster: Tensor
    _weight: Tensor
    _embedding: Tensor
    _sizes: Tensor

    def __init__(
        self,
        base: HeadBase,
        router: Router,
        budgets: Sequence[int],
        rows: str = "shared",
        ops: bool | None = None,
    ) -> None:
        super().__init__()
        if not budgets or min(budgets) < 1:
            raise UsageError(
                "a router needs a budget of clusters", got=list(budgets), expected="1 or more a step"
            )
        check_budgets(budgets, router.clusters)
        check_width("router", router.hidden_size, base)
        self.router, self.budgets = router, tuple(budgets)
        self.by_step = len(set(self.budgets)) > 1
        self.transform = base.transform
        self.shared = rows == "shared"
        self.on_ops = self.static_shapes = head_ops.chosen(base.weight, ops)
        cluster = cluster_rows(router.assignment, base.target_ids)  # (R',)
        self.size = len(cluster)
        self.register_buffer("cluster", cluster, persistent=False)
        self.register_buffer("_weight", base.weight.detach()[: self.size], persistent=False)
        self.register_buffer("target_ids", base.target_ids[: self.size], persistent=False)
        self.register_buffer("_embedding", base.embedding.detach(), persistent=False)
        self.register_buffer("_sizes", cluster.bincount(minlength=router.clusters), persistent=False)  # (M,)
        self._slabs = (
            ClusterSlabs(self._weight, self.target_ids, cluster, router.clusters) if self.on_ops else None
        )
        self._side: torch.cuda.Stream | None = None

    def scored(self, step: int) -> int:
        budget = self.budgets[min(step, len(self.budgets) - 1)]
        return min(round(budget * self.size / self.router.clusters), self.size)

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> Router:
        if sizes.clusters is None:
            raise ConfigError(
                "a router has no size without its number of clusters",
                got=sizes.to_dict(),
                expected="clusters: 1 or more",
            )
        blank = torch.arange(sizes.vocab_size) % sizes.clusters
        return Router(sizes.hidden_size, blank, sizes.clusters, sizes.width, sizes.depth or 1)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("budgets", "rows"))
        assert isinstance(module, Router)
        budgets = options.budgets or default_budgets(module.clusters, decaying=base.autoregressive)
        return cls(base, module, budgets, options.rows or "shared", options.ops)

    def prepare(self, state: DraftState) -> DraftState:
        """Score the clusters in advance; on a GPU, on a side stream in parallel with later kernels."""
        if len(state.tokens) > head_ops.MOST_ROWS:  # processed in parts, which compute their own scores
            return state
        if not state.tokens.is_cuda:
            return replace(state, prepared=_Ranking(*self._ranked(state), state, None))
        if self._side is None:
            self._side = torch.cuda.Stream(state.tokens.device)
        self._side.wait_stream(torch.cuda.current_stream(state.tokens.device))
        with torch.cuda.stream(self._side):
            ranking = _Ranking(*self._ranked(state), state, self._side)
        return replace(state, prepared=ranking)

    def cluster_scores(self, state: DraftState | None) -> Tensor:
        """Score the clusters: (N, M) fp32."""
        if state is None:
            raise UsageError(
                "a router reads what the drafter is fed, and this way of drafting does not tell it",
                expected="a proposer that passes the tokens and hidden states of every step to the head",
            )
        return self.router(F.embedding(state.tokens, self._embedding), state.previous).float()

    def clusters(self, state: DraftState | None, k: int = 1) -> Tensor:
        """Select the clusters of each row: bool (N, M)."""
        prepared = None if state is None else state.prepared
        ranked = prepared.join() if isinstance(prepared, _Ranking) else self._ranked(state)
        return first_clusters(*ranked, self._budget(state), k)

    def _ranked(self, state: DraftState | None) -> tuple[Tensor, Tensor]:
        return ranked_clusters(self.cluster_scores(state), self._sizes)

    def _budget(self, state: DraftState | None) -> int:
        assert state is not None
        return self.budgets[min(state.step, len(self.budgets) - 1)]

    def logits_on_ops(
        self, hidden: Tensor, k: int, state: DraftState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        opened, slabs = self.clusters(state, k), self._slabs  # (N, M)
        assert slabs is not None
        if self.shared:
            opened = of_rows(opened.view(requests_of(state), -1, opened.shape[-1]).any(1), len(hidden))
        logits, rows = cluster_logits(
            hidden,
            slabs.weight,
            slabs.offsets,
            opened,
            most_tiles=slabs.most_tiles(len(hidden), self._budget(state), k),
        )
        return self.transform(logits), rows, slabs.target_ids

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        opened = self.clusters(state, k)  # (N, M)
        requests = requests_of(state)
        if self.shared:
            opened = opened.view(requests, -1, opened.shape[-1]).any(1)  # (B, M)
        union = opened.any(0)[self.cluster].nonzero()[:, 0]  # (C,) ascending
        logits = self.transform(linear(hidden, self._weight[union]).float())
        if len(opened) > 1:  # for one row or one request, the union is the shortlist
            inside = of_rows(opened[:, self.cluster[union]], len(logits))
            logits = logits.masked_fill(~inside, float("-inf"))
        return logits, self.target_ids[union]

    _scored = scores

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        opened = self.clusters(state)
        logits = self.transform(linear(hidden, self._weight).float())
        return masked(logits, opened[:, self.cluster])


def check_budgets(budgets: Sequence[int], clusters: int, *, source: object = None) -> None:
    """Check that no budget exceeds the number of clusters, which would score the whole vocabulary.

    Raises:
        UsageError: a budget is above ``clusters``.
    """
    if max(budgets) > clusters:
        raise UsageError(
            "the budget of clusters is larger than the router's number of clusters",
            got=f"{max(budgets):,} clusters",
            expected=f"at most {clusters:,}, and fewer for a shortlist",
            source=source,
            remedy=f"a quarter of them is --budget {most_by_default(clusters)}",
        )


def most_by_default(clusters: int) -> int:
    """Return the default k_max, a quarter of the clusters (our choice)."""
    return -(-clusters // 4)


def default_budgets(clusters: int, *, decaying: bool) -> tuple[int, ...]:
    """Return the default budgets of draft steps 0, 1, ...; the last budget applies to deeper steps.

    Args:
        clusters: number of clusters.
        decaying: use DynaSpec's k(t) with the schedule ``decay`` from a quarter of the clusters to a
            sixteenth, reached at the fourth step (our choice; a lower floor hardly saves more: over seven
            steps, the mean is 0.49 of k_max instead of 0.51). Otherwise a quarter at every step.
    """
    most = most_by_default(clusters)
    return schedule_sizes("decay", most, -(-most // 4), 5) if decaying else (most,)
