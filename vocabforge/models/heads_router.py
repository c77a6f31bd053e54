"""The head over a router: a shortlist of vocabulary clusters that changes from step to step (DynaSpec)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import ConfigError, UsageError
from .head_types import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes
from .heads_exact import answer, check_width, masked, of_rows, refuse_options, requests_of
from .router import Router, cluster_rows, top_clusters


class RouterHead:
    """DynaSpec: the shortlist is the union of the tokens of the best clusters (METHODS section 5).

    Args:
        base: the exact head; rows whose id is in no cluster (padding of the LM head) are never proposed.
        router: the trained router.
        budgets: clusters at draft step 0, 1, ...; the last holds for deeper steps.
        rows: one ``shared`` union for the rows of a step of a request, or their ``own``.
    """

    KIND = "router"
    context_size = 0

    def __init__(self, base: HeadBase, router: Router, budgets: Sequence[int], rows: str = "shared") -> None:
        if not budgets or min(budgets) < 1:
            raise UsageError(
                "a router needs a budget of clusters", got=list(budgets), expected="1 or more a step"
            )
        check_budgets(budgets, router.clusters)
        check_width("router", router.hidden_size, base)
        self.base, self.router, self.budgets = base, router, tuple(budgets)
        self.shared = rows == "shared"
        self.cluster = cluster_rows(router.assignment, base.target_ids)  # (R',)
        self.size = len(self.cluster)
        self._weight, self.target_ids = base.weight[: self.size], base.target_ids[: self.size]
        self._embedding = base.embedding
        self._sizes = self.cluster.bincount(minlength=router.clusters)  # (M,)

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> Router:
        if sizes.clusters is None:
            raise ConfigError("a router has no size without its number of clusters", got=sizes.to_dict())
        blank = torch.arange(sizes.vocab_size) % sizes.clusters
        return Router(sizes.hidden_size, blank, sizes.clusters, sizes.width, sizes.depth or 1)

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("budgets", "rows"))
        assert isinstance(module, Router)
        return cls(
            base, module, options.budgets or default_budgets(module.clusters), options.rows or "shared"
        )

    def with_budgets(self, budgets: Sequence[int]) -> RouterHead:
        """The same head with other budgets."""
        return RouterHead(self.base, self.router, budgets, "shared" if self.shared else "own")

    @property
    def by_step(self) -> bool:
        """Whether the budget changes from step to step."""
        return len(set(self.budgets)) > 1

    def cluster_scores(self, state: DraftState | None) -> Tensor:
        """(N, M) fp32 scores of the clusters."""
        if state is None:
            raise UsageError(
                "a router reads what the drafter is fed, and this way of drafting does not tell it",
                expected="a proposer that tells a head the tokens and hidden states of every step",
            )
        return self.router(F.embedding(state.tokens, self._embedding), state.previous).float()

    def clusters(self, state: DraftState | None, k: int = 1) -> Tensor:
        """bool (N, M): the clusters each row opens."""
        scores = self.cluster_scores(state)
        assert state is not None
        budget = self.budgets[min(state.step, len(self.budgets) - 1)]
        return top_clusters(scores, self._sizes, budget, k)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return answer(*self.scores(hidden, k, state), k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        opened = self.clusters(state, k)  # (N, M)
        requests = requests_of(state)
        if self.shared:
            opened = opened.view(requests, -1, opened.shape[-1]).any(1)  # (B, M)
        union = opened.any(0)[self.cluster].nonzero()[:, 0]  # (C,) ascending
        logits = F.linear(hidden, self._weight[union]).float()
        if len(opened) > 1:  # one row or one request is the union itself
            inside = of_rows(opened[:, self.cluster[union]], len(logits))
            logits = logits.masked_fill(~inside, float("-inf"))
        return logits, self.target_ids[union]

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        opened = self.clusters(state)
        logits = F.linear(hidden, self._weight).float()
        return masked(logits, opened[:, self.cluster])


def check_budgets(budgets: Sequence[int], clusters: int, *, source: object = None) -> None:
    """Refuse a budget of more clusters than there are: it would score the whole vocabulary unsaid.

    Raises:
        UsageError: a budget is above ``clusters``.
    """
    if max(budgets) > clusters:
        raise UsageError(
            "the budget of clusters is larger than the router's number of clusters",
            got=f"{max(budgets):,} clusters",
            expected=f"at most {clusters:,}, and fewer for a shortlist",
            source=source,
            remedy=f"a quarter of them is --budget {default_budgets(clusters)[0]}",
        )


def default_budgets(clusters: int) -> tuple[int, ...]:
    """Clusters a step where nothing is asked for, our choice: a quarter of them at every step."""
    return (max(1, -(-clusters // 4)),)
