"""Which tokens a dynamic draft head uses, counted while it decodes; and rankings of the vocabulary by these counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ..decode.draft import Commit, Draw, Plan
from ..decode.proposers import Lap, Proposer
from ..decode.tree import DraftTree
from ..models.head_types import DraftHead, DraftState, HeadBase, ScoresSome
from ..models.low_rank import LowRankScorer
from ..vocab.select import Ids

Mass = NDArray[np.float64]
ROWS_STEP = 8  # a default size is a multiple of it


@dataclass(frozen=True)
class UseCounts:
    """What was counted, each by target id (V,).

    Attributes:
        accepted: drafts that verification accepted.
        proposed: nodes of the draft trees that were verified.
        target: the target's own greedy tokens.
        mass: probability that the drafter's exact head gives the token, the mean over the rows of a draft step,
            summed over draft steps.
    """

    accepted: Ids
    proposed: Ids
    target: Ids
    mass: Mass

    def rankings(self) -> dict[str, Ids]:
        """All ids, best first, by each count; equal counts by probability, then the lower id."""
        return {
            "accepted": _ranked(self.accepted, self.mass),
            "proposed": _ranked(self.proposed, self.mass),
            "target": _ranked(self.target, self.mass),
            "probability": _ranked(self.mass, self.mass),
        }


def _ranked(counts: NDArray[Any], mass: Mass) -> Ids:
    return np.lexsort((np.arange(len(counts)), -mass, -counts)).astype(np.int64)


class WatchedHead:
    """A draft head that answers as it is and sums what the exact head below it would have said.

    Args:
        inner: the head. base: the exact head.
    """

    def __init__(self, inner: DraftHead, base: HeadBase) -> None:
        self.inner, self.base = inner, base
        self.size, self.target_ids = inner.size, inner.target_ids
        self.context_size, self.by_step = inner.context_size, inner.by_step
        self._mass = torch.zeros(len(base.weight), dtype=torch.float64, device=base.weight.device)

    def mass(self, vocab_size: int) -> Mass:
        """See :attr:`UseCounts.mass`; ids without a row have none."""
        spread = self._mass.new_zeros(vocab_size)
        spread[self.base.target_ids] = self._mass
        found: Mass = spread.cpu().numpy()
        return found

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """The inner head's answers; the exact head's law is added up."""
        self._mass += F.linear(hidden, self.base.weight).float().softmax(-1).mean(0).double()
        return self.inner.topk(hidden, k, state)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """The inner head's own."""
        return self.inner.scores(hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        """The inner head's own."""
        return self.inner.log_probs(hidden, state)


class WatchedProposer:
    """A proposer that counts the nodes of its trees and those of them that are accepted.

    Args:
        inner: what drafts. vocab_size: V.
    """

    def __init__(self, inner: Proposer, vocab_size: int) -> None:
        self.inner, self.kind, self.label = inner, inner.kind, inner.label
        self.reads, self.aux_layers, self.samples = inner.reads, inner.aux_layers, inner.samples
        self.plan, self.head, self.scratch = inner.plan, inner.head, inner.scratch
        self.plans, self.allocate, self.begin, self.prefill = (
            inner.plans,
            inner.allocate,
            inner.begin,
            inner.prefill,
        )
        self.proposed = np.zeros(vocab_size, dtype=np.int64)
        self.accepted = np.zeros(vocab_size, dtype=np.int64)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        """The inner proposer's tree; its nodes below the root are counted."""
        tree = self.inner.propose(roots, plan, draws, lap)
        drafted = tree.tokens[:, 1:] if tree.alive is None else tree.tokens[:, 1:][tree.alive[:, 1:]]
        _count(self.proposed, drafted.flatten().tolist())
        return tree

    def commit(self, commit: Commit) -> None:
        """Count what a verification accepted of a draft, and hand it on."""
        if commit.path is not None:
            for tokens in commit.tokens:
                _count(self.accepted, tokens[:-1])  # the last is the target's own
        self.inner.commit(commit)


def _count(counts: Ids, tokens: Sequence[int]) -> None:
    np.add.at(counts, np.asarray(tokens, dtype=np.int64), 1)


def subset_ranking(ranking: Ids, size: int, forced: Sequence[int], allowed: NDArray[np.bool_]) -> Ids:
    """The first ``size`` ids in rank order, forced ones first: what a static head of that size holds.

    Args:
        ranking: ids, best first; may hold fewer than ``size``.
        forced: ids that are inside, all of them allowed.
        allowed: (V,) ids that the drafter's head scores and that are tokens.
    """
    must = np.asarray(sorted(forced), dtype=np.int64)
    others = ranking[allowed[ranking] & ~np.isin(ranking, must)]
    order = np.argsort(~np.isin(ranking, must), kind="stable")
    first = ranking[order][: int(np.isin(ranking, must).sum())]  # forced ids in the order of the ranking
    first = np.concatenate([first, must[~np.isin(must, first)]])
    return np.concatenate([first, others])[:size]


def weights_read(head: DraftHead, module: Any, hidden_size: int) -> float:
    """Weights that a dynamic head reads for one hidden row, in rows of H of an LM head.

    A scorer of rank d' over R tokens reads d'(H + R) weights, a router all of its parameters; a ranker and a router
    then read the rows of their shortlist.

    Args:
        module: its trained part.
    """
    if isinstance(module, LowRankScorer):
        own = module.rank * (hidden_size + head.size)
    else:
        own = sum(parameter.numel() for parameter in module.parameters())
    return own / hidden_size + (head.scored(0) if isinstance(head, ScoresSome) else 0)


def default_size(rows: float) -> int:
    """The most rows, a multiple of :data:`ROWS_STEP` where there are so many, that read no more weights."""
    whole = int(rows)
    return whole // ROWS_STEP * ROWS_STEP or max(whole, 1)


def distinct(candidates: Mapping[str, Ids]) -> dict[str, Ids]:
    """Each set of ids once, under the names that give it, ``a = b``."""
    names: dict[bytes, list[str]] = {}
    first: dict[bytes, Ids] = {}
    for name, ranked in candidates.items():
        key = np.sort(ranked).tobytes()
        names.setdefault(key, []).append(name)
        first.setdefault(key, ranked)
    return {" = ".join(names[key]): first[key] for key in names}
